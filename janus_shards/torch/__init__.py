"""PyTorch faces: tensors instead of arrays, device copies, and datasets for torch's own loaders."""
