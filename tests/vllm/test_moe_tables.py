"""vLLM's own lookup reads tables that our store wrote, under the name that vLLM gives them for this device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.shapes import MoeShape, model
from kernels.store import read_vllm_table, write_vllm_table
from kernels.store.names import VLLM_DTYPES, file_device_name, parse_name

CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}
LAYER = model("DeepSeek-R1").split(ep=8)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that vLLM is pointed to; it keeps what it once read."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_moe_configs
    from vllm.utils.platform_utils import get_device_name_as_file_name

    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path))
    for kept in (get_moe_configs, get_device_name_as_file_name):
        kept.cache_clear()
    yield tmp_path
    for kept in (get_moe_configs, get_device_name_as_file_name):
        kept.cache_clear()


@pytest.mark.parametrize(
    ("dtype", "block"), [("bf16", None), ("fp8_w8a8", None), ("fp8_w8a8", (128, 128)), ("int4_w4a16", None), ("int8_w8a16", None)]
)
def test_vllm_finds_and_reads_our_files(fresh: Path, dtype: str, block: tuple[int, int] | None) -> None:
    from vllm.model_executor.layers.fused_moe.fused_moe import get_config_file_name, get_moe_configs
    from vllm.utils.platform_utils import get_device_name_as_file_name

    device = get_device_name_as_file_name()
    configs = {1: CONFIG, 64: CONFIG | {"BLOCK_SIZE_M": 64}}
    path = write_vllm_table(fresh, LAYER, device, dtype, configs, block_shape=block, triton="3.9.0")
    vllms_dtype = None if dtype == "bf16" else dtype
    assert path.name == get_config_file_name(LAYER.experts, LAYER.intermediate, vllms_dtype, list(block) if block else None)
    read = get_moe_configs(LAYER.experts, LAYER.intermediate, vllms_dtype, *(block or ()))
    assert read == configs


@pytest.mark.parametrize("m", [1, 30, 32, 33, 4096])
def test_vllm_takes_the_key_that_we_say_it_takes(fresh: Path, m: int) -> None:
    """int4 packs two values into a byte, so vLLM doubles the last dimension of w2 to find the same intermediate size."""
    from vllm.model_executor.layers.fused_moe.fused_moe import try_get_optimal_moe_config
    from vllm.utils.platform_utils import get_device_name_as_file_name

    shape = MoeShape("made up", 8, 2, 512, 256, "int4")
    configs = {key: CONFIG | {"GROUP_SIZE_M": key} for key in (1, 64)}
    path = write_vllm_table(fresh, shape, get_device_name_as_file_name(), "int4_w4a16", configs)
    w1, w2 = (shape.experts, 2 * shape.intermediate, shape.hidden // 2), (shape.experts, shape.hidden, shape.intermediate // 2)
    taken = try_get_optimal_moe_config(w1, w2, shape.top_k, "int4_w4a16", m)
    assert taken == read_vllm_table(path).config(m)[1]


def test_the_files_that_vllm_ships_for_nvidia_and_amd_are_read() -> None:
    import vllm

    folder = Path(vllm.__file__).parent / "model_executor" / "layers" / "fused_moe" / "configs"
    known = [
        path for path in folder.glob("E=*device_name=[AN]*.json") if (name := parse_name(path.name)) and name.dtype in VLLM_DTYPES
    ]
    assert len(known) > 200
    for path in known:
        assert read_vllm_table(path).configs


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3", "AMD Instinct MI355 OAM", "A/B"])
def test_devices_are_named_as_vllm_names_them(fresh: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform is told another name of its device: here it is a CPU."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_config_file_name
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "get_device_name", classmethod(lambda cls, device_id=0: name))
    assert get_config_file_name(8, 256, None) == f"E=8,N=256,device_name={file_device_name(name)}.json"


def test_devices_are_known_by_pci_as_vllm_knows_them() -> None:
    """From its source: the module itself wants AMD's driver."""
    import vllm

    source = (Path(vllm.__file__).parent / "platforms" / "rocm.py").read_text(encoding="utf-8")
    (named,) = [
        ast.literal_eval(each.value)
        for each in ast.parse(source).body
        if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == "_ROCM_DEVICE_ID_NAME_MAP" and each.value is not None
    ]
    instinct = {pci: name for pci, name in named.items() if name.startswith("AMD_Instinct")}
    assert {pci: file_device_name("unknown", pci) for pci in instinct} == instinct
