"""Version v1alpha1 of the custom resources. Import from the modules."""
