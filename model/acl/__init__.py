"""Who may do what? RocketMQ's two schemes of access control, as pure deciders."""
