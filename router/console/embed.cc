// Writes a C++ source that holds files: `embed OUTPUT FILE...`. Names are those after the last slash.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: embed OUTPUT FILE...\n");
    return 2;
  }
  std::ofstream out(argv[1]);
  out << "#include \"router/console/web_files.h\"\n\nnamespace baton::router::console {\nnamespace {\n";
  for (int i = 2; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    if (!in) {
      std::fprintf(stderr, "embed: cannot read %s\n", argv[i]);
      return 1;
    }
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    out << "constexpr unsigned char kFile" << i << "[] = {";
    for (size_t at = 0; at < bytes.size(); ++at) {
      out << (at % 24 == 0 ? "\n" : "") << static_cast<unsigned>(static_cast<unsigned char>(bytes[at])) << ',';
    }
    out << "0};\n";
  }
  out << "}  // namespace\n\nstd::vector<WebFile> WebFiles() {\n  return {\n";
  for (int i = 2; i < argc; ++i) {
    const std::string path = argv[i];
    out << "      {\"" << path.substr(path.rfind('/') + 1) << "\", {reinterpret_cast<const char*>(kFile" << i
        << "), sizeof(kFile" << i << ") - 1}},\n";
  }
  out << "  };\n}\n\n}  // namespace baton::router::console\n";
  return out.flush() ? 0 : 1;
}
