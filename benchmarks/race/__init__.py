"""The race: every head, the methods of papers/001 and today's libraries on the same softmaxes."""
