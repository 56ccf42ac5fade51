// Stands in for router, prefill_worker and decode_worker in tests of `baton up`: says the events of a server and obeys
// SIGTERM, and misbehaves as the environment asks:
//   FAKE_DIR            each start appends "name pid args" to FAKE_DIR/starts, each drain its name to FAKE_DIR/drains
//   FAKE_FAILS=NAME     that process reports a failure at start and exits with 1
//   FAKE_REFUSED=NAME   the router refuses it
//   FAKE_NEVER_READY=NAME   stays at 42 % of loading
//   FAKE_DIES_AGAIN=NAME    exits with 3 at every start but its first
//   FAKE_DRAINS_FOREVER=NAME  ignores SIGTERM
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace {

volatile sig_atomic_t g_stop = 0;

bool Is(const char* variable, const std::string& name) {
  const char* value = std::getenv(variable);
  return value != nullptr && name == value;
}

std::string Flag(int argc, char** argv, const std::string& name) {
  const std::string prefix = "--" + name + "=";
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind(prefix, 0) == 0) return arg.substr(prefix.size());
  }
  return "";
}

void Event(const std::string& json) {
  std::printf("%s\n", json.c_str());
  std::fflush(stdout);
}

// Appends in one write, so that lines of several processes do not mix. True when `name` was in the file before.
bool Record(const char* file, const std::string& name, const std::string& line) {
  const std::string path = std::string(std::getenv("FAKE_DIR")) + "/" + file;
  std::ostringstream before;
  before << std::ifstream(path).rdbuf();
  std::FILE* f = std::fopen(path.c_str(), "a");
  std::fputs(line.c_str(), f);
  std::fclose(f);
  return before.str().find(name + " ") != std::string::npos;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string self = argv[0];
  const bool router = self.size() > 6 && self.substr(self.size() - 6) == "router";
  const std::string name = router ? "router" : Flag(argc, argv, "name");
  std::string all;
  for (int i = 1; i < argc; ++i) all += std::string(" ") + argv[i];
  const bool again = Record("starts", name, name + " " + std::to_string(::getpid()) + all + "\n");
  ::signal(
      SIGTERM, Is("FAKE_DRAINS_FOREVER", name) ? SIG_IGN : [](int) { g_stop = 1; });
  std::fprintf(stderr, "%s says hello\n", name.c_str());
  if (Is("FAKE_DIES_AGAIN", name) && again) return 3;
  Event(R"({"event":"loading","phase":"weights","progress":0.42})");
  if (Is("FAKE_FAILS", name)) {
    std::fprintf(stderr, "the disk is on fire\n");
    Event(R"({"event":"failed","reason":"no weights to be found"})");
    return 1;
  }
  if (!Is("FAKE_NEVER_READY", name)) {
    const std::string role = router ? "router" : name.substr(0, name.find('-'));
    // The router keeps the address it is given; :0 becomes a made-up port.
    std::string listen = Flag(argc, argv, "listen");
    if (listen == "127.0.0.1:0") listen = "127.0.0.1:" + std::to_string(20000 + ::getpid() % 20000);
    Event("not an event");
    Event(R"({"event":"ready","role":")" + role + R"(","name":")" + name + R"(","listen":")" + listen +
          R"(","http":"127.0.0.1:9","pid":1})");
    if (Is("FAKE_REFUSED", name)) {
      Event(R"({"event":"refused","reason":"layout.dtype is f16 here and f32 there"})");
    } else if (!router) {
      Event(R"({"event":"registered","router":"x"})");
    }
  }
  while (g_stop == 0) ::usleep(5000);
  Event(R"({"event":"draining"})");
  Record("drains", name, name + " " + std::to_string(::getpid()) + "\n");
  Event(R"({"event":"stopped"})");
  return 0;
}
