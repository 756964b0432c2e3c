"""What runs on each node for one attempt: the agent, and the guard that lets nothing survive."""
