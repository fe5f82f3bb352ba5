"""A nightly audit by Airflow. What cannot be read is tried again; what diverged is not: it stays so."""

import logging
import subprocess
from datetime import UTC, datetime, timedelta

from airflow.decorators import dag, task
from airflow.exceptions import AirflowException, AirflowFailException

STORES = ["a=/mnt/a", "b=/mnt/b", "c=/mnt/c"]
REPORTS = "/var/lib/audits/broker-a"
TEXTFILE = "/var/lib/node_exporter/broker-a.prom"  # on the worker; the name is the label audit


@dag(schedule="17 3 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def nightly_audit():
    @task(retries=3, retry_delay=timedelta(minutes=15))
    def audit(ds=None):
        out = f"{REPORTS}/{ds}"
        command = ["keelmq", "audit", *STORES, "--out", out, "--textfile", TEXTFILE]
        done = subprocess.run(command, capture_output=True, text=True)
        logging.info("%s%s", done.stdout, done.stderr)
        if done.returncode in (2, 64):  # diverged, wrong usage
            raise AirflowFailException(f"exit code {done.returncode}: {out}/index.html")
        if done.returncode not in (0, 1):  # unfinished
            raise AirflowException(f"exit code {done.returncode}: {done.stderr}")
        # How many messages are lost: ["ledger"]["lost"] of summary.json, not findings of severity error.
        return done.returncode

    audit()


nightly_audit()
