"""PyTorch: elements as tensors, and map-style datasets with a cache and prefetching."""

from millrace.blocks.samples.sample_cache import SampleCache
from millrace.frameworks.torch.cached_dataset import CachedDataset
from millrace.frameworks.torch.prefetch_sampler import PrefetchSampler
from millrace.frameworks.torch.torch_dataset import TorchDataset, to_tensor
from millrace.frameworks.torch.torch_sampler import TorchSampler

__all__ = ["CachedDataset", "PrefetchSampler", "SampleCache", "TorchDataset", "TorchSampler", "to_tensor"]
