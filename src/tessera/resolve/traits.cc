#include "tessera/resolve/traits.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

template <Recompute kKind>
void recompute(RunConfig& config) {
  const std::int64_t limit = config.memory.limit_bytes;
  config.memory = {.recompute = kKind, .limit_bytes = limit};
}

constexpr auto kTraits = std::to_array<Trait>({
    {.name = "eager",
     .does = "an op is a kernel, and none is grouped with others",
     .group = "kernels",
     .set =
         [](RunConfig& config) {
           config.passes.fuse = false;
           config.passes.group_gemms = false;
           config.passes.gelu_products = false;
         }},
    {.name = "fused_kernels",
     .does = "neighbouring ops are one kernel, and products have no epilogues",
     .group = "kernels",
     .set =
         [](RunConfig& config) {
           config.passes.fuse = true;
           config.passes.gelu_products = false;
         }},
    {.name = "compiled",
     .does = "neighbouring ops are one kernel, and products are apart",
     .group = "kernels",
     .set =
         [](RunConfig& config) {
           config.passes.fuse = true;
           config.passes.group_gemms = false;
           config.passes.gelu_products = false;
         }},
    {.name = "flat_collectives",
     .does = "a collective over several levels is one ring or tree of all its ranks",
     .group = "collectives",
     .style = CollectiveStyle::kFlat},
    {.name = "buckets",
     .does = "likewise, and the states of a layer travel as one",
     .group = "collectives",
     .style = CollectiveStyle::kBuckets},
    {.name = "ddp=after",
     .does = "nothing is computed while states are gathered and gradients reduced",
     .group = "ddp",
     .set = [](RunConfig& config) { config.comm.overlap = false; }},
    {.name = "ddp=overlap",
     .does = "gradients are reduced, and states gathered, beside the computation",
     .group = "ddp",
     .set = [](RunConfig& config) { config.comm.overlap = true; }},
    {.name = "no_reshard",
     .does = "parameters are gathered once a step and kept until its end",
     .group = "",
     .set = [](RunConfig& config) { config.state.secondary = "1"; }},
    {.name = "fp8_all_gather",
     .does = "parameters travel in 8 bits",
     .group = "",
     .set = [](RunConfig& config) { config.state.wire_param = "int8"; }},
    {.name = "attention=fused_softmax",
     .does = "two batched products around scale, mask and softmax in one kernel",
     .group = "attention",
     .change = [](Plan& plan) { plan.passes.attention = AttentionKernels::kFusedSoftmax; }},
    {.name = "attention=unfused",
     .does = "likewise, with scale, mask and softmax one by one",
     .group = "attention",
     .change = [](Plan& plan) { plan.passes.attention = AttentionKernels::kUnfused; }},
    {.name = "dropout",
     .does = "a tenth of probabilities and of residuals is dropped",
     .group = "",
     .change = [](Plan& plan) { plan.passes.dropout = 0.1; }},
    {.name = "gradients=apart",
     .does = "a microbatch's gradients of products are written, then added up",
     .group = "",
     .change = [](Plan& plan) { plan.passes.joins_accumulation = false; }},
    {.name = "scatter_gather",
     .does = "of what tensor ranks all have, each sends its part along the pipeline",
     .group = "",
     .change = [](Plan& plan) { plan.passes.scatter_hops = true; }},
    {.name = "gather_ahead",
     .does = "what an update changes is gathered beside the next step's forward",
     .group = "",
     .change = [](Plan& plan) { plan.passes.gathers_ahead = true; }},
    {.name = "tensor_beside",
     .does = "what tensor ranks tell each other travels beside products of weights' gradients",
     .group = "",
     .change = [](Plan& plan) { plan.passes.tensor_beside = true; }},
    {.name = "recompute=none",
     .does = "every activation is kept",
     .group = "recompute",
     .set = recompute<Recompute::kNone>},
    {.name = "recompute=full",
     .does = "of a layer its input alone is kept",
     .group = "recompute",
     .set = recompute<Recompute::kFull>},
    {.name = "recompute=selective",
     .does = "what is cheap of a layer is computed again",
     .group = "recompute",
     .set = recompute<Recompute::kSelective>},
    {.name = "recompute=full_but_last_stage",
     .does = "the same, but the last stage of a pipeline keeps all",
     .group = "recompute",
     .set = recompute<Recompute::kFullButLastStage>},
    {.name = "recompute=attention_core",
     .does = "attention is computed again",
     .group = "recompute",
     .set = recompute<Recompute::kAttention>},
    {.name = "recompute=every_second_product",
     .does = "of a layer every second product is kept, attention, and sums over ranks",
     .group = "recompute",
     .set = recompute<Recompute::kEverySecondProduct>},
});

}  // namespace

std::span<const Trait> all_traits() {
  return kTraits;
}

std::vector<const Trait*> find_traits(std::span<const std::string> names) {
  std::vector<const Trait*> found;
  for (const std::string& name : names) {
    const auto trait = std::ranges::find(kTraits, name, &Trait::name);
    if (trait == kTraits.end()) {
      std::vector<std::string> known;
      std::string list;
      for (const Trait& each : kTraits) {
        known.emplace_back(each.name);
        list += format("{}{}", list.empty() ? "" : ", ", each.name);
      }
      fail(ErrorCode::kInvalidConfig,
           "--as={}: found no trait of that name, expected some of {}{}",
           name,
           list,
           did_you_mean(name, known));
    }
    for (const Trait* const other : found) {
      TESSERA_REQUIRE(other != &*trait && (other->group.empty() || other->group != trait->group),
                      ErrorCode::kInvalidConfig,
                      "--as={}: found it beside {}, expected one of the two",
                      name,
                      other->name);
    }
    found.push_back(&*trait);
  }
  return found;
}

RunConfig with_traits(RunConfig config, std::span<const Trait* const> traits) {
  for (const Trait* const trait : traits) {
    if (trait->set != nullptr) {
      trait->set(config);
    }
  }
  return config;
}

RunChanges changes_of(std::span<const Trait* const> traits) {
  RunChanges changes;
  std::vector<void (*)(Plan&)> of_plan;
  for (const Trait* const trait : traits) {
    if (trait->style) {
      changes.style = trait->style;
    }
    if (trait->change != nullptr) {
      of_plan.push_back(trait->change);
    }
  }
  if (!of_plan.empty()) {
    changes.plan = [of_plan](Plan& plan) {
      for (const auto& change : of_plan) {
        change(plan);
      }
    };
  }
  return changes;
}

}  // namespace tessera
