#pragma once

namespace tessera {

// The program `tessera`: parses the command line, runs the subcommand, and prints any error on
// stderr. Returns the process's exit code: 0, 2 for bad usage, else exit_code() of the error, and 1
// for what nobody expected or where stdout could not be written.
int run_cli(int argc, const char* const* argv);

}  // namespace tessera
