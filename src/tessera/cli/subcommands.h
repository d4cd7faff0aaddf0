#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): it is the library's
class App;
}

namespace tessera {

// Each adds one subcommand, which runs while the command line is parsed.
void add_bench(CLI::App& app);
void add_checkpoint(CLI::App& app);
void add_compare(CLI::App& app);
void add_data(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_plan(CLI::App& app);
void add_report(CLI::App& app);
void add_simulate(CLI::App& app);
void add_tokenizer(CLI::App& app);

}  // namespace tessera
