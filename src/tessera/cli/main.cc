#include "tessera/cli/cli.h"
#include "tessera/cli/prepare_process.h"

int main(int argc, char** argv) {
  tessera::prepare_process();
  return tessera::run_cli(argc, argv);
}
