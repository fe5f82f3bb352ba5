"""Where the rules of ``model/acl`` meet requests: what each needs, who asks, and what is noted of it."""
