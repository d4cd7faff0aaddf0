// Passes by what they make of a text: tests/golden/passes/<pass>/<case>.txt (CONTRIBUTING.md, "Add
// a pass").

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/ir/dtype.h"
#include "tessera/passes/compile.h"
#include "tessera/passes/graph/add_adapters.h"
#include "tessera/passes/graph/join_accumulation.h"
#include "tessera/passes/graph/quantize_products.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/passes/program/assign_slots.h"

namespace tessera {
namespace {

constexpr std::size_t kMostLines = 26;         // the title, and 25 more
constexpr std::size_t kMostProgramLines = 50;  // the same

// Passes that run elsewhere than in the list.
Representation adapted(Representation form, const Compilation& /*c*/) {
  return add_adapters(std::get<Graph>(form), {.rank = 2, .alpha = 4.0, .targets = {"up"}});
}

Representation started(Representation form, const Compilation& /*c*/) {
  return start_accumulators(std::get<Graph>(std::move(form)));
}

constexpr std::array kElsewhere = {Pass{"add_adapters", nullptr, adapted, "in plan/graphs.cc"},
                                   Pass{"start_accumulators", nullptr, started, "in lower()"}};

const Pass& find_pass(std::string_view name) {
  for (const std::span<const Pass> list : {pass_list(), std::span<const Pass>(kElsewhere)}) {
    if (const auto found = std::ranges::find(list, name, &Pass::name); found != list.end()) {
      return *found;
    }
  }
  throw Error(ErrorCode::kInvalidArgument, format("no pass {}", name));
}

std::string text_of(const Representation& form) {
  return std::visit([](const auto& content) { return to_string(content); }, form);
}

bool flag(const std::string& value) {
  TESSERA_CHECK(value == "true", "{}: expected true", value);
  return true;
}

// "context=2 weak tensor=2 padded"
DimCut cut(const std::string& text) {
  std::istringstream words(text);
  DimCut result;
  AxisSizes* axes = &result.axes;
  for (std::string word; words >> word;) {
    if (word == "weak") {
      axes = &result.weak;
    } else if (word == "padded") {
      result.pads = true;
    } else {
      axes->push_back(parse_axes(word).at(0));
    }
  }
  return result;
}

// "rowwise head skip_first=1"
Float8Options float8(const std::string& text) {
  std::istringstream words(text);
  Float8Options result;
  const std::map<std::string, bool*> flags = {{"rowwise", &result.rowwise},
                                              {"head", &result.head},
                                              {"fast_accumulation", &result.fast_accumulation},
                                              {"keep_weight_codes", &result.keep_weight_codes}};
  for (std::string word; words >> word;) {
    const std::string value = word.substr(word.find('=') + 1);
    if (const auto found = flags.find(word); found != flags.end()) {
      *found->second = true;
    } else if (word.starts_with("skip_first=")) {
      result.skip_first = std::stoi(value);
    } else if (word.starts_with("skip_last=")) {
      result.skip_last = std::stoi(value);
    } else if (word.starts_with("gradients=")) {
      result.gradients = parse_dtype(value).value();
    } else {
      TESSERA_CHECK(word == "tensorwise", "float8: unknown word {}", word);
    }
  }
  return result;
}

// "all_but_cheap keep=gelu again=add.1 end=2"
RecomputeRule recompute_rule(const std::string& text) {
  std::istringstream words(text);
  RecomputeRule rule;
  for (std::string word; words >> word;) {
    const std::string value = word.substr(word.find('=') + 1);
    if (word.starts_with("keep=")) {
      rule.keep.push_back(value);
    } else if (word.starts_with("again=")) {
      rule.again.push_back(value);
    } else if (word.starts_with("end=")) {
      rule.end = std::stoi(value);
    } else {
      const auto kept = std::ranges::find_if(kRecomputeKept,
                                             [&](RecomputeKept one) { return name(one) == word; });
      TESSERA_CHECK(kept != kRecomputeKept.end(), "recompute: unknown word {}", word);
      rule.kept = *kept;
    }
  }
  return rule;
}

// "optimizer=file activations=host piece_bytes=4096"
OffloadOptions offload(const std::string& text) {
  std::istringstream words(text);
  OffloadOptions result;
  const std::map<std::string, Space*> spaces = {{"optimizer", &result.optimizer},
                                                {"parameters", &result.parameters},
                                                {"activations", &result.activations}};
  for (std::string word; words >> word;) {
    const std::string key = word.substr(0, word.find('='));
    const std::string value = word.substr(word.find('=') + 1);
    if (key == "piece_bytes") {
      result.piece_bytes = std::stoi(value);
    } else {
      *spaces.at(key) = *std::ranges::find(kSpaces, value, [](Space space) { return name(space); });
    }
  }
  return result;
}

std::vector<std::int64_t> numbers(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::int64_t>(words), {}};
}

// "F0 1F0 rB0 B0 W0": that of chunk 1, and a receive.
std::vector<WorkStep> order(const std::string& text) {
  const std::map<char, Action> actions = {
      {'F', Action::kForward}, {'B', Action::kBackward}, {'W', Action::kWeightGradient}};
  std::istringstream words(text);
  std::vector<WorkStep> result;
  for (std::string word; words >> word;) {
    WorkStep& step = result.emplace_back();
    if (word[0] == 'r') {
      step.code.kind = CodeKind::kReceive;
      word = word.substr(1);
    }
    const std::size_t letter = word.find_first_of("FBW");
    TESSERA_CHECK(letter != std::string::npos, "{}: expected F, B or W", word);
    step.code.action = actions.at(word[letter]);
    step.code.chunk = letter == 0 ? 0 : std::stoi(word);
    step.microbatch = std::stoi(word.substr(letter + 1));
  }
  return result;
}

// What a case says above its graph, a line "key: value" each.
struct Head {
  std::string title;
  std::vector<std::string> after;  // passes that make of the graph what the pass gets
  CompileOptions options;
  bool trains = true;
  std::int64_t pipeline_rank = 0;

  PipelineOptions& pipeline() {
    if (!options.pipeline) {
      options.pipeline.emplace();
      options.pipeline->order.resize(1);
    }
    return *options.pipeline;
  }

  bool is_cut() const { return options.pipeline && !options.pipeline->cut.layers.empty(); }

  static std::vector<std::string> words(const std::string& text) {
    std::istringstream in(text);
    return {std::istream_iterator<std::string>(in), {}};
  }

  void set(const std::string& key, const std::string& value) {
    StateAxes& state = options.update.state;
    const std::map<std::string, std::size_t*> degrees = {{"param", &state.param},
                                                         {"secondary", &state.secondary},
                                                         {"grad", &state.grad},
                                                         {"optimizer", &state.optimizer}};
    if (key == "after") {
      after = words(value);
    } else if (key == "ranks") {
      state.axes = parse_axes(value);
    } else if (const auto degree = degrees.find(key); degree != degrees.end()) {
      *degree->second = static_cast<std::size_t>(std::stoi(value));
    } else if (key.starts_with("cut ")) {
      options.update.dims[key.substr(4)] = cut(value);
    } else if (key == "forward_alone") {
      trains = !flag(value);
    } else if (key == "microbatches") {
      options.update.num_microbatches = std::stoi(value);
    } else if (key == "clip") {
      options.update.clip = std::stod(value);
    } else if (key == "undecayed") {
      options.update.undecayed = {value};
    } else if (key == "float8") {
      options.float8 = float8(value);
    } else if (key == "whole_rows") {
      options.attention.whole_rows = flag(value);
    } else if (key == "any_order") {
      options.attention.any_order = flag(value);
    } else if (key == "attention_kernels") {
      parse_text(value, options.attention_kernels);
    } else if (key == "dropout") {
      options.dropout = std::stod(value);
    } else if (key == "logits_bytes") {
      options.logits_bytes = std::stoi(value);
    } else if (key == "overlap_layers") {
      options.overlap_layers = std::stoi(value);
    } else if (key == "recompute") {
      options.recompute = {recompute_rule(value)};
    } else if (key == "offload") {
      options.offload = offload(value);
    } else if (key == "cache_length") {
      options.cache_length = std::stoi(value);
    } else {
      set_pipeline(key, value);
    }
  }

  void set_pipeline(const std::string& key, const std::string& value) {
    if (key == "pipeline") {
      pipeline().cut.axes = parse_axes(value);
    } else if (key == "layers") {
      PipelineCut& split = pipeline().cut;
      split.layers = numbers(value);
      split.rank_of_stage.resize(split.layers.size());
      std::iota(split.rank_of_stage.begin(), split.rank_of_stage.end(), std::int64_t{0});
    } else if (key == "slices") {
      pipeline().cut.slice_lengths = numbers(value);
    } else if (key == "ranks_of_stages") {
      pipeline().cut.rank_of_stage = numbers(value);
    } else if (key == "pipeline_rank") {
      pipeline_rank = std::stoi(value);
    } else if (key == "order") {
      pipeline().order[0] = order(value);
    } else {
      throw Error(ErrorCode::kInvalidArgument, format("unknown key {}", key));
    }
  }
};

struct Case {
  Head head;
  std::string beside;  // the program that already is in the arena; empty: none
  std::string before;
  std::string outcome;  // "becomes", "unchanged" or "fails"
  std::string expected;
};

Case read_case(const std::filesystem::path& path) {
  std::istringstream text(read_file(path));
  Case result;
  std::size_t num_lines = 0;
  std::string* part = nullptr;
  for (std::string line; std::getline(text, line);) {
    const std::size_t colon = line.find(": ");
    if (num_lines++ == 0) {
      TESSERA_CHECK(line.starts_with("# "), "{}: the first line is no title", path.string());
      result.head.title = line.substr(2);
    } else if (line == "beside") {
      part = &result.beside;
    } else if (line == "given") {
      part = &result.before;
    } else if (line == "becomes" || line == "unchanged" || line.starts_with("fails: ")) {
      result.outcome = line.substr(0, colon);
      result.expected = line.starts_with("fails: ") ? line.substr(colon + 2) : "";
      part = &result.expected;
    } else if (part == nullptr && !line.starts_with("graph ") && !line.starts_with("program ")) {
      TESSERA_CHECK(colon != std::string::npos, "{}: {}", path.string(), line);
      result.head.set(line.substr(0, colon), line.substr(colon + 2));
    } else {
      part = part == nullptr ? &result.before : part;
      *part += line + "\n";
    }
  }
  EXPECT_LE(num_lines, result.expected.starts_with("program ") ? kMostProgramLines : kMostLines)
      << path;
  return result;
}

std::filesystem::path cases() {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests" / "golden" / "passes";
}

// By pass.
std::map<std::string, std::vector<std::filesystem::path>> find_cases() {
  std::map<std::string, std::vector<std::filesystem::path>> result;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cases())) {
    if (entry.is_regular_file()) {
      result[entry.path().parent_path().filename().string()].push_back(entry.path());
    }
  }
  for (auto& [pass, paths] : result) {
    std::ranges::sort(paths);
  }
  return result;
}

std::vector<std::filesystem::path> all_cases() {
  std::vector<std::filesystem::path> result;
  for (const auto& [pass, paths] : find_cases()) {
    result.insert(result.end(), paths.begin(), paths.end());
  }
  return result;
}

Representation parse_form(const std::string& text) {
  if (text.starts_with("program ")) {
    return parse_program(text);
  }
  return parse_graph(text);
}

void check(const Graph& graph) {
  verify(graph);
}

void check(const LaidOutGraph& laid_out) {
  verify(laid_out);
}

// A program can be verified once it has its places.
void check(const Program& program) {
  const bool is_planned =
      std::ranges::none_of(program.buffers, [](const Buffer& b) { return b.offsets.empty(); });
  verify(is_planned ? program : plan_memory(assign_slots(program)));
}

class PassCase : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(PassCase, MakesOfTheGraphWhatItSays) {
  const Case tried = read_case(GetParam());
  SCOPED_TRACE(tried.head.title);
  const Program beside = tried.beside.empty() ? Program() : parse_program(tried.beside);
  CompileOptions options = tried.head.options;
  if (!tried.beside.empty()) {
    options.beside = {&beside};
  }
  Compilation compilation = {
      .options = options, .trains = tried.head.trains, .pipeline_rank = tried.head.pipeline_rank};
  Representation form = parse_form(tried.before);
  std::visit([](const auto& content) { check(content); }, form);
  if (const auto* graph = std::get_if<Graph>(&form);
      graph != nullptr && tried.head.is_cut() && tried.outcome != "fails") {
    const UpdateOptions& update = options.update;
    compilation.tied = tied_parameters(*graph, options.pipeline->cut, update.state, update.dims);
  }
  for (const std::string& earlier : tried.head.after) {
    form = find_pass(earlier).run(std::move(form), compilation);
  }
  const std::string before = text_of(form);
  const Pass& pass = find_pass(GetParam().parent_path().filename().string());
  if (tried.outcome == "fails") {
    try {
      pass.run(std::move(form), compilation);
      ADD_FAILURE() << "was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what() + std::string("\n"), testing::StrEq(tried.expected + "\n"));
    }
    return;
  }
  form = pass.run(std::move(form), compilation);
  std::visit([](const auto& content) { check(content); }, form);
  EXPECT_EQ(text_of(form), tried.outcome == "unchanged" ? before : tried.expected);
}

INSTANTIATE_TEST_SUITE_P(Golden,
                         PassCase,
                         testing::ValuesIn(all_cases()),
                         [](const testing::TestParamInfo<std::filesystem::path>& tried) {
                           return tried.param.parent_path().filename().string() + "_" +
                                  tried.param.stem().string();
                         });

// Two cases of a pass, one of them where it has nothing to do, or refuses, but for those that place
// everything they get.
TEST(PassCases, AreOfEveryPass) {
  const auto found = find_cases();
  std::vector<std::string_view> names;
  for (const std::span<const Pass> list : {pass_list(), std::span<const Pass>(kElsewhere)}) {
    for (const Pass& pass : list) {
      names.push_back(pass.name);
    }
  }
  const std::set<std::string_view> always_place = {"lower", "assign_slots", "plan_memory"};
  for (const std::string_view name : names) {
    const auto cases_of_pass = found.find(std::string(name));
    ASSERT_NE(cases_of_pass, found.end()) << name;
    EXPECT_GE(cases_of_pass->second.size(), 2U) << name;
    EXPECT_TRUE(always_place.contains(name) ||
                std::ranges::any_of(cases_of_pass->second,
                                    [](const std::filesystem::path& path) {
                                      const Case tried = read_case(path);
                                      return tried.outcome != "becomes" ||
                                             tried.expected == tried.before;
                                    }))
        << name;
  }
  EXPECT_EQ(found.size(), names.size());
}

TEST(PassList, IsOnItsPage) {
  const std::string page =
      read_file(std::filesystem::path(TESSERA_SOURCE_DIR) / "docs" / "floors" / "passes.md");
  for (const Pass& pass : pass_list()) {
    EXPECT_THAT(page, testing::HasSubstr(format("`{}`", pass.name)));
    EXPECT_FALSE(pass.why_here.empty()) << pass.name;
  }
}

}  // namespace
}  // namespace tessera
