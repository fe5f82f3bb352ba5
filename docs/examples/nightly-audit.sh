#!/bin/sh
# One audit a night, for cron, whose PATH knows no environment of Python's: give it, with keelmq's first.
#
#     PATH=/opt/keelmq/.venv/bin:/usr/local/bin:/usr/bin:/bin
#     17 3 * * *  nightly-audit.sh /var/lib/audits/broker-a a=/mnt/a b=/mnt/b c=/mnt/c
#
# FOLDER/<date>-<process> is a report, FOLDER/latest the last one that read all replicas. Says what is new since then, and
# ends with the audit's exit code: 0 clean, 1 warnings, 2 diverged, 3 unfinished, 64 wrong usage; 75: the last audit still
# runs; 127: keelmq is not in PATH, and no metrics were written.
# FOLDER's last part is the group: its metrics are in TEXTFILES/<group>.prom [/var/lib/node_exporter], label audit="<group>".
set -u
[ $# -ge 2 ] || { echo "usage: $0 FOLDER STORE..." >&2; exit 64; }
folder=$1
shift
command -v keelmq > /dev/null || { echo "keelmq is not in PATH, which is $PATH: see the head of $0" >&2; exit 127; }
mkdir -p "$folder" || exit 64
exec 9> "$folder/lock"
textfiles=${TEXTFILES:-/var/lib/node_exporter}
[ -d "$textfiles" ] || { echo "TEXTFILES: $textfiles is no folder" >&2; exit 64; }
flock -n 9 || { echo "the last audit still runs" >&2; exit 75; }

report=$folder/$(date -u +%Y-%m-%dT%H%M%SZ)-$$
keelmq audit "$@" --out "$report" --textfile "$textfiles/$(basename "$folder").prom"
code=$?
[ -e "$report/summary.json" ] || exit $code # nothing to compare, or to keep
if [ -e "$folder/latest/summary.json" ]; then
    keelmq audit diff "$folder/latest" "$report"
fi
# What was found before on a replica that could not be read this time is compared with the next audit that reads it.
if grep -q '^  "unreadable": {}' "$report/summary.json"; then
    ln -sfn "${report##*/}" "$folder/latest"
fi
# The newest 30 are kept, and latest.
latest=$folder/$(readlink "$folder/latest")
ls -1d "$folder"/????-??-??T??????Z-* | sort -r | tail -n +31 | grep -Fvx "$latest" | xargs -r rm -rf --
exit $code
