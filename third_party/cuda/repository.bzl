"""The CUDA toolkit as the repository @cuda: links into the folder where nvcc lies, or, where there is none, an empty one.

Looked for in $CUDA_HOME, then where nvcc on the path belongs to, then /usr/local/cuda. Nothing is downloaded.
"""

_FOUND = """
package(default_visibility = ["//visibility:public"])

exports_files(["nvcc"])

# For host code; nvcc finds its own.
cc_library(
    name = "headers",
    hdrs = glob(["toolkit/include/*.h", "toolkit/include/crt/*"]),
    includes = ["toolkit/include"],
)

cc_library(
    name = "cudart_static",
    deps = [":headers"],
    linkopts = ["{lib}/libcudart_static.a", "-ldl", "-lrt", "-lpthread"],
)

cc_library(
    name = "nccl",
    deps = [":headers"],
    linkopts = ["-L{lib}", "-Wl,-rpath,{lib}", "-lnccl"],
)
"""

_ABSENT = """
package(default_visibility = ["//visibility:public"])

# Whatever uses one of these is told why it cannot be built.
genrule(
    name = "nvcc_absent",
    outs = ["nvcc", "absent.h"],
    cmd = "echo 'There is no CUDA toolkit: set CUDA_HOME to its folder, or leave --config=cuda away.' >&2; exit 1",
)

[cc_library(
    name = name,
    hdrs = ["absent.h"],
) for name in ["headers", "cudart_static", "nccl"]]
"""

def _cuda_repository(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "")
    if not home:
        nvcc = ctx.which("nvcc")
        home = str(nvcc.realpath.dirname.dirname) if nvcc else "/usr/local/cuda"
    if not ctx.path(home + "/bin/nvcc").exists:
        ctx.file("BUILD.bazel", _ABSENT)
        return
    ctx.symlink(home, "toolkit")

    # By its own path, from which it finds the rest of the toolkit.
    ctx.file("nvcc", "#!/bin/sh\nexec {}/bin/nvcc \"$@\"\n".format(home), executable = True)
    lib = home + ("/lib64" if ctx.path(home + "/lib64").exists else "/lib")
    ctx.file("BUILD.bazel", _FOUND.format(lib = lib))

cuda_repository = repository_rule(
    implementation = _cuda_repository,
    environ = ["CUDA_HOME"],
    configure = True,
    local = True,
)
