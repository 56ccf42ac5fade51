// The decode worker's process. See README.md for its life.
#include "decode_worker/role.h"
#include "prefill_worker/role.h"
#include "worker/process.h"

int main(int argc, char** argv) {
  return baton::worker::Main("decode", {baton::prefill_worker::ServeRole, baton::decode_worker::ServeRole}, argc, argv);
}
