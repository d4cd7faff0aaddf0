// The text of a plan: one list of its fields, which both directions go through.

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <type_traits>
#include <vector>

#include "tessera/actions/check.h"
#include "tessera/actions/csv.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/toml_section.h"
#include "tessera/base/units.h"
#include "tessera/models/described_model.h"
#include "tessera/plan/plan.h"

namespace tessera {
namespace {

constexpr std::int64_t kMost = INT64_MAX;

class PlanWriter {
 public:
  static constexpr bool kReads = false;

  const std::string& text() const { return text_; }

  template <class Body>
  void table(const std::string& name, const Body& body) {
    text_ += format("{}[{}]\n", text_.empty() ? "" : "\n", name);
    body(*this);
  }

  // One [[name]] table for each element.
  template <class T, class Body>
  void tables(const std::string& name, const std::vector<T>& list, const Body& body) {
    for (const T& element : list) {
      text_ += format("\n[[{}]]\n", name);
      body(*this, element);
    }
  }

  template <class T, class Body>
  void optional_table(const std::string& name, const std::optional<T>& value, const Body& body) {
    if (value) {
      table(name, [&](PlanWriter& io) { body(io, *value); });
    }
  }

  void integer(const char* key, std::int64_t value, std::int64_t /*least*/, std::int64_t /*most*/) {
    line(key, format("{}", value));
  }

  void number(const char* key, double value) { line(key, toml_number(value)); }

  void counts(const char* key, const std::vector<std::int64_t>& values) {
    std::string list;
    for (const std::int64_t value : values) {
      list += format("{}{}", list.empty() ? "" : ", ", value);
    }
    line(key, format("[{}]", list));
  }

  void flag(const char* key, bool value) { line(key, value ? "true" : "false"); }

  void string(const char* key, const std::string& value) { line(key, toml_string(value)); }

  void strings(const char* key, const std::vector<std::string>& values) {
    std::string list;
    for (const std::string& value : values) {
      list += (list.empty() ? "" : ", ") + toml_string(value);
    }
    line(key, format("[{}]", list));
  }

 private:
  void line(const char* key, const std::string& value) { text_ += format("{} = {}\n", key, value); }

  std::string text_;
};

class PlanReader {
 public:
  static constexpr bool kReads = true;

  explicit PlanReader(const TomlSection& section) : section_(section) {}

  // After all fields: no other key may be there.
  void end() const { refuse_unknown_keys(section_, known_); }

  template <class Body>
  void table(const std::string& name, const Body& body) {
    PlanReader inner(require_table(section_, note(last_part(name)), "a section"));
    body(inner);
    inner.end();
  }

  template <class T, class Body>
  void tables(const std::string& name, std::vector<T>& list, const Body& body) {
    const toml::node* const node = section_.table.get(note(last_part(name)));
    const toml::array* const array = node != nullptr ? node->as_array() : nullptr;
    if (node != nullptr && (array == nullptr || !array->is_array_of_tables())) {
      refuse(section_, last_part(name), *node, format("[[{}]] tables", name));
    }
    list.clear();
    for (std::size_t i = 0; array != nullptr && i < array->size(); ++i) {
      PlanReader inner(
          TomlSection{*array->get(i)->as_table(), section_.source, format("{}.", name)});
      body(inner, list.emplace_back());
      inner.end();
    }
  }

  template <class T, class Body>
  void optional_table(const std::string& name, std::optional<T>& value, const Body& body) {
    value.reset();
    if (section_.table.contains(note(last_part(name)))) {
      table(name, [&](PlanReader& io) { body(io, value.emplace()); });
    }
  }

  void integer(const char* key, std::int64_t& value, std::int64_t least, std::int64_t most) {
    value = read_integer(section_, note(key), least, most);
  }

  void number(const char* key, double& value) {
    const toml::node& node = require(section_, note(key), "a number");
    const std::optional<double> found = node.value<double>();
    if (!found || !std::isfinite(*found)) {
      refuse(section_, key, node, "a number");
    }
    value = *found;
  }

  void flag(const char* key, bool& value) {
    const toml::node& node = require(section_, note(key), "true or false");
    if (!node.is_boolean()) {
      refuse(section_, key, node, "true or false");
    }
    value = node.as_boolean()->get();
  }

  void string(const char* key, std::string& value) { value = read_text(section_, note(key)); }

  void strings(const char* key, std::vector<std::string>& values) {
    constexpr std::string_view kExpected = "an array of strings";
    const toml::node& node = require(section_, note(key), kExpected);
    const toml::array* const array = node.as_array();
    if (array == nullptr || (!array->empty() && !array->is_homogeneous<std::string>())) {
      refuse(section_, key, node, kExpected);
    }
    values.clear();
    for (const toml::node& element : *array) {
      values.push_back(element.as_string()->get());
    }
  }

  // Each at least 0.
  void counts(const char* key, std::vector<std::int64_t>& values) {
    constexpr std::string_view kExpected = "an array of whole numbers, at least 0";
    const toml::node& node = require(section_, note(key), kExpected);
    const toml::array* const array = node.as_array();
    if (array == nullptr) {
      refuse(section_, key, node, kExpected);
    }
    values.clear();
    for (const toml::node& element : *array) {
      values.push_back(element.is_integer() ? element.as_integer()->get() : -1);
      if (values.back() < 0) {
        refuse(section_, key, element, kExpected);
      }
    }
  }

  // `parse` of the text of `key`; what it refuses gets the key's place.
  template <class Parse>
  auto parsed(const char* key, const Parse& parse) {
    const std::string text = read_text(section_, note(key));
    try {
      return parse(text);
    } catch (const Error& error) {
      fail(ErrorCode::kInvalidConfig,
           "{}: {}{}: {}",
           toml_place(section_.source, require(section_, key, "").source()),
           section_.path,
           key,
           error.message());
    }
  }

 private:
  static std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

  const std::string& note(const std::string& key) { return known_.emplace_back(key); }

  TomlSection section_;
  std::vector<std::string> known_;
};

template <class T>
using Plain = std::remove_const_t<T>;

// One of several texts, by a pair of functions.
template <class Io, class T, class ToText, class Parse>
void text_field(Io& io, const char* key, T& value, const ToText& to_text, const Parse& parse) {
  if constexpr (Io::kReads) {
    value = io.parsed(key, parse);
  } else {
    io.string(key, std::string(to_text(value)));
  }
}

// One of an enumeration's values, by their names.
template <class Io, class T, class ToText, std::size_t N>
void choice_field(Io& io,
                  const char* key,
                  T& value,
                  const ToText& to_text,
                  const std::array<Plain<T>, N>& choices) {
  text_field(io, key, value, to_text, [&](const std::string& text) {
    std::string known;
    for (const Plain<T> choice : choices) {
      if (text == to_text(choice)) {
        return choice;
      }
      known += format("{}\"{}\"", known.empty() ? "" : ", ", to_text(choice));
    }
    fail(ErrorCode::kInvalidConfig, "found \"{}\", expected one of {}", text, known);
  });
}

template <class Io, class T>
void dtype_field(Io& io, const char* key, T& value) {
  choice_field(
      io,
      key,
      value,
      [](DType dtype) { return name(dtype); },
      std::array{DType::kF32, DType::kBF16});
}

template <class Io, class W>
void wire_fields(Io& io, const char* key, W& wire) {
  text_field(
      io,
      key,
      wire.formats,
      [](const WireFormats& formats) { return to_string(formats); },
      [](const std::string& text) {
        return text.empty() ? WireFormats() : parse_wire_formats(text);
      });
}

template <class Io, class P>
void model_fields(Io& io, P& plan) {
  if constexpr (Io::kReads) {
    plan.model = io.parsed("description", described_model);
  } else {
    io.string("description", plan.model.json);
  }
  io.integer("sequence_length", plan.sequence_length, 1, kMost);
  dtype_field(io, "dtype", plan.dtype);
  dtype_field(io, "logits", plan.logits);
}

template <class Io, class P>
void step_fields(Io& io, P& plan) {
  io.integer("microbatch", plan.microbatch, 1, kMost);
  io.integer("microbatches", plan.num_microbatches, 1, kMost);
  io.flag("validates", plan.validates);
  io.integer("threads", plan.threads, 1, kMost);
}

template <class Io, class M>
void mesh_fields(Io& io, M& mesh) {
  io.strings("levels", mesh.levels);
  io.tables("mesh.axes", mesh.axes, [](Io& axis_io, auto& axis) {
    axis_io.string("name", axis.name);
    choice_field(
        axis_io,
        "group",
        axis.group,
        [](AxisGroup group) { return to_string(group); },
        std::array{
            AxisGroup::kTensor, AxisGroup::kContext, AxisGroup::kData, AxisGroup::kPipeline});
    axis_io.integer("size", axis.size, 2, kMost);
    axis_io.string("level", axis.level);
    axis_io.flag("expert", axis.expert);
  });
}

template <class Io, class L>
void state_fields(Io& io, L& layout) {
  io.flag("sequence_parallel", layout.sequence_parallel);
  choice_field(
      io,
      "context",
      layout.context.kind,
      [](ContextKind kind) { return to_string(kind); },
      std::array{ContextKind::kGather, ContextKind::kUlysses, ContextKind::kRing});
  choice_field(
      io,
      "balance",
      layout.context.balance,
      [](ContextBalance balance) { return to_string(balance); },
      std::array{ContextBalance::kZigzag, ContextBalance::kNone});
  io.integer("param", layout.placement.param, 1, kMost);
  io.integer("secondary", layout.placement.secondary, 1, kMost);
  io.integer("grad", layout.placement.grad, 1, kMost);
  io.integer("optimizer", layout.placement.optimizer, 1, kMost);
  choice_field(
      io,
      "secondary_use",
      layout.secondary_use,
      [](SecondaryUse use) { return to_string(use); },
      std::array{SecondaryUse::kAll, SecondaryUse::kBackward});
  wire_fields(io, "wire_param", layout.wires.param);
  wire_fields(io, "wire_secondary", layout.wires.secondary);
  wire_fields(io, "wire_grad", layout.wires.grad);
  wire_fields(io, "wire_update", layout.wires.update);
  io.integer("wire_block", layout.wires.param.block, 2, 256);
}

template <class Io, class F>
void float8_fields(Io& io, F& float8) {
  io.flag("rowwise", float8.rowwise);
  choice_field(
      io,
      "gradients",
      float8.gradients,
      [](DType dtype) { return name(dtype); },
      std::array{DType::kF8E4M3, DType::kF8E5M2});
  io.integer("skip_first", float8.skip_first, 0, kMost);
  io.integer("skip_last", float8.skip_last, 0, kMost);
  io.flag("head", float8.head);
  io.flag("fast_accumulation", float8.fast_accumulation);
  io.flag("keep_weight_codes", float8.keep_weight_codes);
}

template <class Io, class O>
void optimizer_fields(Io& io, O& optimizer) {
  io.number("beta1", optimizer.beta1);
  io.number("beta2", optimizer.beta2);
  io.number("eps", optimizer.eps);
  io.number("weight_decay", optimizer.weight_decay);
  io.flag("decays_all", optimizer.decays_all);
  io.number("clip", optimizer.clip);
  dtype_field(io, "moments", optimizer.moments);
  dtype_field(io, "gradients", optimizer.gradients);
}

template <class Io, class R>
void recompute_fields(Io& io, R& rule) {
  io.integer("first", rule.first, 0, kMost);
  io.integer("end", rule.end, 1, kMost);
  choice_field(
      io, "kept", rule.kept, [](RecomputeKept kept) { return name(kept); }, kRecomputeKept);
  io.strings("keep", rule.keep);
  io.strings("again", rule.again);
  io.strings("store", rule.store);
}

template <class Io, class C>
void pass_fields(Io& io, C& passes) {
  io.flag("fuse", passes.fuse);
  io.flag("group_gemms", passes.group_gemms);
  io.flag("gelu_products", passes.gelu_products);
  io.flag("overlap", passes.overlap);
  io.integer("overlap_layers", passes.overlap_layers, 1, kMost);
  io.flag("whole_rows", passes.whole_rows);
  io.flag("any_order", passes.any_order);
  choice_field(
      io,
      "attention",
      passes.attention,
      [](AttentionKernels kernels) { return to_string(kernels); },
      std::array{
          AttentionKernels::kFlash, AttentionKernels::kFusedSoftmax, AttentionKernels::kUnfused});
  io.flag("joins_accumulation", passes.joins_accumulation);
  io.flag("scatter_hops", passes.scatter_hops);
  io.flag("gathers_ahead", passes.gathers_ahead);
  io.flag("tensor_beside", passes.tensor_beside);
  const auto space_field = [&](const char* key, auto& space) {
    choice_field(io, key, space, [](Space of) { return name(of); }, kSpaces);
  };
  space_field("optimizer", passes.optimizer);
  space_field("parameters", passes.parameters);
  space_field("activations", passes.activations);
  io.flag("all_activations", passes.all_activations);
  io.number("dropout", passes.dropout);
  io.tables("passes.moved_states", passes.moved_states, [](Io& table, auto& moved) {
    table.integer("optimizer", moved.optimizer, 0, kMost);
    table.integer("parameters", moved.parameters, 0, kMost);
  });
  io.tables("passes.recompute", passes.recompute, [](Io& table, auto& rule) {
    recompute_fields(table, rule);
  });
}

template <class Io, class P>
void pipeline_fields(Io& io, P& pipeline) {
  io.counts("layers", pipeline.layers);
  io.counts("slices", pipeline.slice_lengths);
  text_field(io, "table", pipeline.table, to_csv, [](const std::string& text) {
    return parse_table(text, "").table;
  });
}

// All of a plan. Strides of axes follow from their sizes, and the wires share their block.
template <class Io, class P>
void plan_fields(Io& io, P& plan) {
  io.table("model", [&](Io& table) { model_fields(table, plan); });
  io.table("step", [&](Io& table) { step_fields(table, plan); });
  io.table("mesh", [&](Io& table) { mesh_fields(table, plan.layout.mesh); });
  io.table("state", [&](Io& table) { state_fields(table, plan.layout); });
  io.optional_table(
      "pipeline", plan.pipeline, [](Io& table, auto& value) { pipeline_fields(table, value); });
  io.optional_table(
      "float8", plan.float8, [](Io& table, auto& value) { float8_fields(table, value); });
  io.table("optimizer", [&](Io& table) { optimizer_fields(table, plan.optimizer); });
  io.table("passes", [&](Io& table) { pass_fields(table, plan.passes); });
}

void set_strides(Mesh& mesh) {
  std::int64_t stride = 1;
  std::set<std::string> names;
  for (MeshAxis& axis : mesh.axes) {
    TESSERA_REQUIRE(names.insert(axis.name).second && !axis.name.empty(),
                    ErrorCode::kInvalidConfig,
                    "found the name \"{}\", expected one that no axis before has",
                    axis.name);
    TESSERA_REQUIRE(std::ranges::count(mesh.levels, axis.level) == 1,
                    ErrorCode::kInvalidConfig,
                    "axis {} is on the level \"{}\", expected one of mesh.levels",
                    axis.name,
                    axis.level);
    TESSERA_REQUIRE(axis.size <= INT32_MAX / stride,
                    ErrorCode::kInvalidConfig,
                    "axis {} of {} ranks: a mesh has at most {} ranks",
                    axis.name,
                    axis.size,
                    INT32_MAX);
    axis.stride = stride;
    stride *= axis.size;
  }
}

void complete_state(RunLayout& layout) {
  validate(layout.placement, layout.mesh);
  StateWires& wires = layout.wires;
  require_wire_block(wires.param.block);
  for (Wire* wire : {&wires.param, &wires.secondary, &wires.grad, &wires.update}) {
    wire->block = wires.param.block;
    formats_of_levels(wire->formats, data_levels(layout.mesh).size());
  }
}

void require_gradients(const Plan& plan) {
  const std::int64_t slices = plan.pipeline ? plan.pipeline->table.slices : 1;
  const std::int64_t ranks = plan.layout.num_data() * plan.layout.num_context();
  TESSERA_REQUIRE(
      plan.optimizer.gradients == DType::kF32 ||
          (plan.num_microbatches == 1 && ranks == 1 && slices == 1),
      ErrorCode::kInvalidConfig,
      "found gradients = \"bf16\" with {} microbatches{} on {} data and context ranks, expected "
      "one of each: gradients that are added up are f32",
      plan.num_microbatches,
      slices == 1 ? "" : format(" of {} slices", slices),
      ranks);
}

// Rules come in the order of layers, of which each is in one at most.
void require_rules(const RecomputeRules& rules) {
  std::int64_t end = 0;
  for (const RecomputeRule& rule : rules) {
    TESSERA_REQUIRE(rule.first >= end && rule.first < rule.end,
                    ErrorCode::kInvalidConfig,
                    "found recompute of the layers from {} to before {}, expected at least one, "
                    "from {} on",
                    rule.first,
                    rule.end,
                    end);
    end = rule.end;
  }
}

// What is stored has a space.
void require_stores(const PassPlan& passes) {
  for (const RecomputeRule& rule : passes.recompute) {
    TESSERA_REQUIRE(rule.store.empty() || passes.activations != Space::kDevice,
                    ErrorCode::kInvalidConfig,
                    "found ops to store of the layers from {}, expected none where activations are "
                    "on the device",
                    rule.first);
  }
}

// How much of the states moves is said of each pipeline rank, or of none.
void require_moved(const Plan& plan) {
  const std::size_t said = plan.passes.moved_states.size();
  const std::int64_t ranks = num_pipeline_ranks(plan.layout.mesh);
  TESSERA_REQUIRE(said == 0 || said == static_cast<std::size_t>(ranks),
                  ErrorCode::kInvalidConfig,
                  "found {} tables of moved_states, expected none or one for each of {} pipeline "
                  "ranks",
                  said,
                  ranks);
}

// A plan has a pipeline where its mesh has one, and a table of its ranks and microbatches.
void require_pipeline(const Plan& plan) {
  const std::int64_t ranks = num_pipeline_ranks(plan.layout.mesh);
  TESSERA_REQUIRE(plan.pipeline.has_value() == (ranks > 1),
                  ErrorCode::kInvalidConfig,
                  "found {}, with {} on the mesh",
                  plan.pipeline ? "a table" : "none",
                  format_plural(ranks, "pipeline rank"));
  if (plan.pipeline) {
    check(plan.pipeline->table);
    require_run(plan.pipeline->table, "table", ranks, plan.num_microbatches);
    require_layers(plan.pipeline->layers, plan.pipeline->table.stages, plan.model.num_layers);
    require_slice_lengths(*plan.pipeline, plan.sequence_length);
  }
}

}  // namespace

std::string to_string(const Plan& plan) {
  PlanWriter writer;
  plan_fields(writer, plan);
  return writer.text();
}

Plan parse_plan(std::string_view text, std::string_view source) {
  const toml::table table = parse_toml(text, source);
  PlanReader reader(TomlSection{table, source, ""});
  Plan plan;
  plan_fields(reader, plan);
  reader.end();
  // What several keys say together has the place of their section.
  const auto check_section = [&](const char* section, const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      fail(ErrorCode::kInvalidConfig,
           "{}: {}: {}",
           toml_place(source, table.get(section)->source()),
           section,
           error.message());
    }
  };
  check_section("mesh", [&] { set_strides(plan.layout.mesh); });
  check_section("state", [&] { complete_state(plan.layout); });
  check_section("optimizer", [&] { require_gradients(plan); });
  check_section("passes", [&] {
    require_rules(plan.passes.recompute);
    require_stores(plan.passes);
    require_moved(plan);
  });
  check_section(plan.pipeline ? "pipeline" : "mesh", [&] { require_pipeline(plan); });
  return plan;
}

}  // namespace tessera
