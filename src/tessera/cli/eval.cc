#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/print.h"
#include "tessera/base/status_line.h"
#include "tessera/base/units.h"
#include "tessera/cli/input_options.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/subcommands.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/infer/choices.h"
#include "tessera/infer/evaluate.h"
#include "tessera/infer/evaluator.h"
#include "tessera/infer/trained_model.h"

namespace tessera {
namespace {

struct EvalCommand {
  std::filesystem::path checkpoint;
  InputOptions data;
  std::set<std::string> given;  // options of `data` that were named
  std::filesystem::path choices;
  std::filesystem::path output;
  MarkNames marks;
  bool json = false;
};

// Shows how far an evaluation is.
OnEvalProgress progress_on(StatusLine& line, const std::string& unit) {
  return [&line, unit](const EvalProgress& now) {
    if (line.is_due()) {
      line.show(format(
          "{}  loss {:.4f}",
          describe_work({.done = now.done, .total = now.total, .seconds = line.seconds()}, unit),
          now.loss));
    }
  };
}

// What the run's data say where the command does not. A file's format is that of the run's where
// its name allows it: lines of JSON may be conversations, and a .bin alone is bare ids.
CorpusInput data_input(const EvalCommand& command, const TrainedModel& model) {
  const DataSource run = data_sources(model.config.data).front();
  const auto is_given = [&](const char* name) { return command.given.contains(name); };
  InputOptions named = command.data;
  if (!is_given("--field")) {
    named.text.field = run.field.value_or(named.text.field);
  }
  if (!is_given("--document-separator")) {
    named.text.document_separator = run.document_separator.value_or("");
  }
  if (!is_given("--token-type")) {
    named.token_type = to_string(run.token_type.value_or(RawTokens::kU16));
  }
  if (!is_given("--chat-template")) {
    named.chat_template = to_string(model.config.data.chat_template);
  }
  CorpusInput input = corpus_input(named);
  for (InputFile& file : input.files) {
    std::error_code error;
    const bool may_be_chat = run.format == DataFormat::kChat && file.format == DataFormat::kJsonl;
    const bool may_be_ids =
        run.format == DataFormat::kTokens && file.format == DataFormat::kMegatron &&
        !std::filesystem::exists(std::filesystem::path(file.path).replace_extension(".idx"), error);
    if (!is_given("--format") && (may_be_chat || may_be_ids)) {
      file.format = *run.format;
    }
  }
  return input;
}

// Stdin as a file without a name, which can be read as any other one.
class StdinFile {
 public:
  StdinFile() : file_(std::tmpfile(), &std::fclose) {
    require_kept(file_ != nullptr);
    std::array<char, 65536> piece;
    while (const std::size_t size = std::fread(piece.data(), 1, piece.size(), stdin)) {
      require_kept(std::fwrite(piece.data(), 1, size, file_.get()) == size);
    }
    TESSERA_REQUIRE(std::ferror(stdin) == 0,
                    ErrorCode::kInvalidData,
                    "cannot read stdin: {}",
                    std::strerror(errno));
    require_kept(std::fflush(file_.get()) == 0);
  }

  std::string path() const { return format("/proc/self/fd/{}", ::fileno(file_.get())); }

 private:
  static void require_kept(bool is_kept) {
    TESSERA_REQUIRE(is_kept,
                    ErrorCode::kDeviceError,
                    "cannot keep stdin in a file of {}: {}",
                    P_tmpdir,
                    std::strerror(errno));
  }

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

// Runs body(the command), in which stdin, where it is named, is a file; its name in errors is
// "stdin".
template <class Body>
void with_stdin(const EvalCommand& command, const Body& body) {
  std::vector<std::filesystem::path> files = command.data.files;
  const auto named = std::ranges::find(files, "-");
  if (named == files.end()) {
    body(command);
    return;
  }
  const std::optional<MpiLaunch> launch = find_mpi_launch();
  TESSERA_REQUIRE((!launch || launch->size == 1) && std::ranges::count(files, "-") == 1,
                  ErrorCode::kInvalidConfig,
                  "--data -: stdin can be read once, by one process: expected a file");
  const StdinFile input;
  *named = input.path();
  EvalCommand with_file = command;
  with_file.data.files = files;
  try {
    body(with_file);
  } catch (const Error& error) {
    std::string message = error.what();
    for (std::size_t at = 0; (at = message.find(input.path(), at)) != std::string::npos;) {
      message.replace(at, input.path().size(), "stdin");
    }
    throw Error(error.code(), message);
  }
}

void evaluate_data(const EvalCommand& command, const TrainedModel& model, EvaluatorRanks& ranks) {
  LossResult result;
  {
    StatusLine line;
    result =
        evaluate_loss(model, ranks, data_input(command, model), progress_on(line, "sequences"));
  }
  if (!ranks.leads()) {
    return;
  }
  if (command.json) {
    // Nobody knows the bytes of tokens without a tokenizer.
    const nlohmann::ordered_json bits =
        result.bytes > 0 ? nlohmann::ordered_json(result.bits_per_byte()) : nullptr;
    const nlohmann::ordered_json json({{"checkpoint", model.checkpoint.string()},
                                       {"loss", result.loss()},
                                       {"perplexity", result.perplexity()},
                                       {"bits_per_byte", bits},
                                       {"nats", result.nats},
                                       {"tokens", result.tokens},
                                       {"documents", result.documents},
                                       {"bytes", result.bytes}});
    print(json.dump() + "\n");
    return;
  }
  print(
      format("checkpoint: {}\nloss: {:.4f} nats a token\nperplexity: {:.2f}\n"
             "bits per byte: {}\ntokens: {}; documents: {}; bytes: {}\n",
             model.checkpoint.string(),
             result.loss(),
             result.perplexity(),
             result.bytes > 0 ? format("{:.4f}", result.bits_per_byte()) : "unknown",
             format_grouped(result.tokens),
             format_grouped(result.documents),
             result.bytes > 0 ? format_grouped(result.bytes) : "unknown, without a tokenizer"));
}

// One of several numbers of right answers, for people.
std::string accuracy(const std::string& name, std::int64_t right, std::int64_t total) {
  return format("{}: {:.4f} ({} of {})\n",
                name,
                static_cast<double>(right) / static_cast<double>(total),
                format_grouped(right),
                format_grouped(total));
}

std::string describe(const ChoicesResult& result, const TrainedModel& model, bool as_json) {
  const auto questions = static_cast<std::int64_t>(result.scores.size());
  if (as_json) {
    nlohmann::ordered_json json({{"checkpoint", model.checkpoint.string()},
                                 {"questions", questions},
                                 {"labels", result.num_labels}});
    if (result.num_labels > 0) {
      const auto labels = static_cast<double>(result.num_labels);
      json["acc"] = static_cast<double>(result.right) / labels;
      json["acc_norm"] = static_cast<double>(result.right_by_character) / labels;
      json["acc_bytes"] = static_cast<double>(result.right_by_byte) / labels;
    }
    return json.dump() + "\n";
  }
  std::string text = format("checkpoint: {}\nquestions: {}; with a label: {}\n",
                            model.checkpoint.string(),
                            format_grouped(questions),
                            format_grouped(result.num_labels));
  if (result.num_labels > 0) {
    text += accuracy("acc", result.right, result.num_labels);
    text += accuracy("acc_norm", result.right_by_character, result.num_labels);
    text += accuracy("acc_bytes", result.right_by_byte, result.num_labels);
  }
  return text;
}

void evaluate_choices(const EvalCommand& command,
                      const TrainedModel& model,
                      EvaluatorRanks& ranks) {
  require_other_file(command.output, command.choices);
  const std::vector<Question> questions = read_questions(command.choices);
  ChoicesResult result;
  {
    StatusLine line;
    result = score_choices(model, ranks, command.choices, questions, progress_on(line, "endings"));
  }
  if (!ranks.leads()) {
    return;
  }
  if (result.num_cut > 0) {
    log_warning(
        format("{} of the contexts were too long for the model's sequences of {} tokens: "
               "their fronts were left out",
               format_grouped(result.num_cut),
               model.config.data.sequence_length));
  }
  if (!command.output.empty()) {
    std::string lines;
    for (std::size_t i = 0; i < questions.size(); ++i) {
      lines += to_json(questions[i], result.scores[i]) + "\n";
    }
    write_file_atomic(command.output, lines);
  }
  print(describe(result, model, command.json));
}

void evaluate(const EvalCommand& command, const std::vector<std::string>& overrides) {
  TrainedModel model = open_trained_model(command.checkpoint);
  model.config = evaluation_config(model, overrides);
  if (command.marks.bos || command.marks.eos) {
    model.tokenizer = with_named_marks(model.text_tokenizer(), command.marks, "--");
  }
  EvaluatorRanks ranks(model);
  ranks.fail_together([&] {
    if (command.choices.empty()) {
      with_stdin(command, [&](const EvalCommand& read) { evaluate_data(read, model, ranks); });
    } else {
      evaluate_choices(command, model, ranks);
    }
  });
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("eval", "Measure how well a trained model predicts");
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<EvalCommand>();
  add_path(command,
           "CHECKPOINT",
           options->checkpoint,
           "A checkpoint, or a run directory: its newest checkpoint")
      ->required();
  CLI::App& input = *command.add_option_group("input", "What it predicts, one of");
  CLI::Option& data = *add_paths(input,
                                 "--data",
                                 options->data.files,
                                 "Files of data, - of stdin: loss, perplexity and bits per byte");
  CLI::Option& choices =
      *add_path(input,
                "--choices",
                options->choices,
                "Lines of {\"ctx\": .., \"endings\": [..], \"label\": n}: how often the "
                "likeliest ending is the right one");
  input.require_option(1);
  const std::vector<CLI::Option*> of_data =
      add_input_options(command, options->data, {"text", "jsonl", "chat", "tokens", "megatron"});
  for (CLI::Option* option : of_data) {
    option->needs(&data);
  }
  add_output(
      command, "-o,--output", options->output, "JSONL with the scores of every ending of a line")
      ->needs(&choices);
  add_mark_options(command, options->marks);
  command.add_flag("--json", options->json, "Print the result as one JSON object");
  command.footer(
      "It runs on one rank, or on those that mpirun or srun started; --parallel.ranks=4 and other\n"
      "keys of [parallel], [context], [pipeline], [state], [cluster] and [comm], and\n"
      "--run.threads, lay it out as they do a training. How the model was trained does not\n"
      "matter, but that it runs on a GPU if it was trained on one and one is here, unless\n"
      "--run.device says otherwise.");
  // What the parser does not know are overrides, which the config checks.
  command.allow_extras();
  command.callback([&command, options, of_data] {
    for (const CLI::Option* option : of_data) {
      if (option->count() > 0) {
        options->given.insert(option->get_name());
      }
    }
    evaluate(*options, command.remaining());
  });
}

}  // namespace tessera
