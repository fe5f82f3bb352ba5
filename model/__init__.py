"""Words all parts share: offsets, epochs, messages, topics, configuration, errors. No I/O."""
