"""Do the replicas of a broker group hold the same log and every acknowledged message? Ends in a verdict."""

import os

# Arrow keeps what is freed, in case it is wanted again: for a log of 16 GiB that was 50 MiB more than for one
# of 1 GiB. Read when pyarrow is loaded; who has loaded it, or set it, keeps what there is.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")
