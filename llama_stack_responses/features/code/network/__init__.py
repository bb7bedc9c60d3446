"""The network of a container: a policy, and a proxy beside the container that lets out only what the policy allows."""
