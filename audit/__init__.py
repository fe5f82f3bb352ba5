"""Do the replicas of a broker group hold the same log and every acknowledged message? Ends in a verdict."""
