"""Compiles .cu files with nvcc, for --config=cuda; without it the targets are skipped and nothing of CUDA is needed.

--define=cuda_archs=90a,120a chooses architectures (compute capabilities without the dot); the default is 90a.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

DEFAULT_ARCHS = "90a"

# As the kernels' orders demand: nothing is fused, flushed or approximated behind our back (kernels/cuda/README.md).
_EXACT = ["-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"]

def cuda_only():
    """For target_compatible_with: only with --config=cuda."""
    return select({
        "//third_party/cuda:enabled": [],
        "//conditions:default": ["//third_party/cuda:without_cuda"],
    })

def _cuda_library(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    compilation = cc_common.merge_compilation_contexts(
        compilation_contexts = [d[CcInfo].compilation_context for d in ctx.attr.deps],
    ) if hasattr(cc_common, "merge_compilation_contexts") else cc_common.merge_cc_infos(
        cc_infos = [d[CcInfo] for d in ctx.attr.deps],
    ).compilation_context
    archs = ctx.var.get("cuda_archs", DEFAULT_ARCHS).split(",")
    if "90" in archs and "90a" in archs:
        fail("cuda_archs has 90 and 90a: which of them a Hopper GPU takes is not for us to choose, and their results differ")
    objects, reports = [], []
    for src in ctx.files.srcs:
        base = ctx.label.name + "/" + src.basename[:-len(".cu")]
        object_file = ctx.actions.declare_file(base + ".o")
        report = ctx.actions.declare_file(base + ".ptxas.txt")
        args = ["-std=c++20", "--expt-relaxed-constexpr", "-O3", "-Xptxas", "-v", "-Xcompiler", "-fPIC,-Wall,-ffp-contract=off", "-I."] + _EXACT
        args += ["-gencode=arch=compute_{0},code=sm_{0}".format(a) for a in archs]
        if "90a" in archs:
            args.append("-DBATON_CUDA_SM_90A")  # host code cannot see the "a"
        # ptxas reports registers, stack and spills of each kernel on stderr.
        ctx.actions.run_shell(
            inputs = depset(
                [src] + ctx.files.hdrs,
                transitive = [compilation.headers],
            ),
            outputs = [object_file, report],
            command = '"$@" 2>"{0}" || {{ cat "{0}" >&2; exit 1; }}'.format(report.path),
            arguments = [ctx.file._nvcc.path] + args + ["-c", src.path, "-o", object_file.path],
            tools = [ctx.file._nvcc],
            mnemonic = "NvccCompile",
            progress_message = "Compiling %s for the GPU" % src.short_path,
            use_default_shell_env = True,
        )
        objects.append(object_file)
        reports.append(report)
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        name = ctx.label.name,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        disallow_dynamic_library = True,
        alwayslink = False,
    )
    own = CcInfo(
        compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)),
        linking_context = linking,
    )
    return [
        DefaultInfo(files = depset(objects)),
        OutputGroupInfo(ptxas = depset(reports)),
        cc_common.merge_cc_infos(cc_infos = [own] + [d[CcInfo] for d in ctx.attr.deps]),
    ]

_rule = rule(
    implementation = _cuda_library,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "_nvcc": attr.label(default = "@cuda//:nvcc", allow_single_file = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def cuda_library(name, deps = [], **kwargs):
    """A library of .cu files. The output group `ptxas` holds ptxas's report of each (NAME_ptxas is a filegroup of it)."""
    _rule(
        name = name,
        deps = deps + ["@cuda//:cudart_static"],
        target_compatible_with = cuda_only(),
        **kwargs
    )
    native.filegroup(
        name = name + "_ptxas",
        srcs = [name],
        output_group = "ptxas",
        visibility = kwargs.get("visibility"),
    )

def emulated_cuda_library(name, srcs, hdrs = [], deps = [], **kwargs):
    """The same .cu files for the host, by the emulator (kernels/cuda/emulator); for tests."""
    for src in srcs:
        native.genrule(
            name = name + "_" + src.replace(".", "_"),
            testonly = True,
            outs = [name + "/" + src.replace(".cu", ".cc")],
            cmd = "echo '#include \"%s/%s\"' >$@" % (native.package_name(), src),
        )
    native.cc_library(
        name = name,
        testonly = True,
        srcs = [name + "/" + src.replace(".cu", ".cc") for src in srcs],
        hdrs = hdrs,
        textual_hdrs = srcs,
        # A heap-allocated stack for each fiber of each block would take minutes under the address sanitizer.
        copts = ["-Wno-unknown-pragmas", "--param=asan-use-after-return=0"],
        deps = deps + ["//kernels/cuda/emulator"],
        **kwargs
    )
