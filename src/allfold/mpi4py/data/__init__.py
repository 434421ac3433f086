"""The parts of messages: memory, datatypes and operations."""
