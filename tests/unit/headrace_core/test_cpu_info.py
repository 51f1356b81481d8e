"""/proc/cpuinfo of an x86 and of an Arm machine."""

from headrace_core.cpu_info import cpu_features, cpu_model, parse_cpuinfo

X86 = """processor\t: 0
model name\t: AMD EPYC 7B13
flags\t\t: fpu avx2 avx512_bf16 fma
vmx flags\t: amx_bf16

processor\t: 1
model name\t: something else
flags\t\t: fpu
"""
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd bf16 sve\n"


def test_the_first_processor_counts() -> None:
    assert parse_cpuinfo(X86)["model name"] == cpu_model(X86) == "AMD EPYC 7B13"
    assert cpu_features(X86) == ("avx2", "fma", "avx512_bf16")


def test_arm_lists_features_and_has_no_model_name() -> None:
    assert cpu_features(ARM) == ("asimd", "bf16", "sve")
    assert cpu_model(ARM) is None


def test_a_machine_without_the_file_has_none() -> None:
    assert cpu_features("") == ()
    assert cpu_model("") is None
