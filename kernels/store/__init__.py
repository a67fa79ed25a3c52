"""The store of tuned configurations: files by class of node, and which of them holds for a layer. Standard library only."""

from kernels.store.about import About, KeyFacts
from kernels.store.files import Table, about_path, class_folder, read_table, write_table
from kernels.store.lookup import Choice, Found, KernelMismatch, default_config, lookup, nearest, store_roots
from kernels.store.names import table_name
from kernels.store.nodeclass import NodeClass, of_accelerator, of_torch_properties, parse_slug
from kernels.store.vllm_tables import VllmTable, find_vllm_tables, read_vllm_table, vllm_tables, write_vllm_table

__all__ = [
    "About",
    "Choice",
    "Found",
    "KernelMismatch",
    "KeyFacts",
    "NodeClass",
    "Table",
    "VllmTable",
    "about_path",
    "class_folder",
    "default_config",
    "find_vllm_tables",
    "lookup",
    "nearest",
    "of_accelerator",
    "of_torch_properties",
    "parse_slug",
    "read_table",
    "read_vllm_table",
    "store_roots",
    "table_name",
    "vllm_tables",
    "write_table",
    "write_vllm_table",
]
