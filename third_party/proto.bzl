"""C++ code for .proto files, with gRPC stubs, from Debian's protoc and grpc_cpp_plugin."""

def baton_cc_proto(name, srcs, grpc = True, deps = [], visibility = None):
    """Generates and compiles C++ for `srcs`.

    Args:
      name: the cc_library to make.
      srcs: .proto files of this package; imports are relative to the workspace root.
      grpc: whether services get gRPC stubs.
      deps: other baton_cc_proto targets that `srcs` import.
      visibility: as usual.
    """
    outs = []
    for src in srcs:
        base = src[:-len(".proto")]
        outs += [base + ".pb.h", base + ".pb.cc"]
        if grpc:
            outs += [base + ".grpc.pb.h", base + ".grpc.pb.cc"]
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [d + "_protos" for d in deps],
        visibility = ["//visibility:public"],
    )
    plugin = "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(RULEDIR_ROOT) " if grpc else ""
    native.genrule(
        name = name + "_gen",
        srcs = srcs + [d + "_protos" for d in deps],
        outs = outs,
        cmd = "/usr/bin/protoc -I. --cpp_out=$(GENDIR) " + plugin.replace("$(RULEDIR_ROOT)", "$(GENDIR)") +
              " ".join(["$(location %s)" % s for s in srcs]),
        tools = [],
    )
    native.cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        copts = ["-Wno-all", "-Wno-extra"],
        visibility = visibility,
        deps = deps + ["@system//:protobuf"] + (["@system//:grpc++"] if grpc else []),
    )
