"""Who is alive, whose lease runs, when a master is elected: decided on the leader, proposed to the table."""
