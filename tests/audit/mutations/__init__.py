"""A stopped group's files changed at random, one at a time: is each reported, or proven without effect?"""
