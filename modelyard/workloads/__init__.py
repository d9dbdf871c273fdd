"""What a service is made of: complete Kubernetes objects, or a refusal that names field and remedy. No I/O."""
