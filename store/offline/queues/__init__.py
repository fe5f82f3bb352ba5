"""What the queues of a store should say by its log, and how they come to say it, where no broker runs."""
