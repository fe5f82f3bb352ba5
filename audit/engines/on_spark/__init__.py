"""What the engine on Spark needs beside its questions: a Java, a context, and jobs over tables in bytes."""
