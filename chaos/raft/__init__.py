"""Random schedules over the real Raft node, and the bugs they have to find."""
