"""What both ends of the HA port say: frames, proofs, and how long silence may last."""
