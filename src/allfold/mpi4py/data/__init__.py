"""Memory, datatypes and operations: messages are made of them."""
