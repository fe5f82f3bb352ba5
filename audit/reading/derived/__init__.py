"""What do the files say that a store makes of its log: queues, indexes, and RocketMQ's others?"""
