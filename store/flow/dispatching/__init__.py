"""How do records get from the log into queues and index, and who hears of it?"""
