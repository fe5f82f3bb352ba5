"""What a broker does by itself: tables to slaves, logs compared and repaired, delayed messages delivered."""
