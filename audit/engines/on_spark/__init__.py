"""What the engine on Spark needs beside its questions: a Java, a session, and queues of many."""
