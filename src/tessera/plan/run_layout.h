#pragma once

#include <cstdint>

#include "tessera/mesh/context_order.h"
#include "tessera/mesh/dim_axes.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/placement.h"
#include "tessera/passes/graph/choose_attention.h"
#include "tessera/passes/ranks/state_axes.h"

namespace tessera {

// The context axes, innermost first.
AxisSizes context_axes(const Mesh& mesh);

// How a run lies on its ranks.
struct RunLayout {
  Mesh mesh = {};
  Placement placement = {};
  SecondaryUse secondary_use = SecondaryUse::kAll;
  StateWires wires = {};  // by level
  bool sequence_parallel = false;
  ContextLayout context = {};  // of sequences that context ranks share

  // The axes that cut dims, by the dims' names.
  DimAxes dims() const { return dim_axes(mesh, sequence_parallel, context.kind); }

  // The same in evaluation, where no data axis cuts anything: along one each rank works on
  // sequences of its own, in a graph that knows of no others. Context axes do.
  DimAxes evaluation_dims() const;

  // Ranks that read different sequences.
  std::int64_t num_data() const;

  // What their attention may take for granted, beside what a plan says.
  AttentionChoices attention() const;

  // Ranks that share each sequence.
  std::int64_t num_context() const { return num_ranks(context_axes(mesh)); }
};

// Lengths of sequences that the ranks can share are multiples of it.
std::int64_t sequence_unit(const RunLayout& layout);

// The axes that cut training state under this layout.
StateAxes state_axes(const RunLayout& layout);

// Which tokens of its sequences a rank has.
ContextPart context_part(const RunLayout& layout, std::int64_t rank);

// A rank's place among those that read different sequences.
std::int64_t data_place(const Mesh& mesh, std::int64_t rank);

// How many ranks share the layers; 1 without a pipeline.
std::int64_t num_pipeline_ranks(const Mesh& mesh);

// The axes along which they lie, innermost first.
AxisSizes pipeline_axes(const Mesh& mesh);

// A rank's place along the pipeline, from its start.
std::int64_t pipeline_place(const Mesh& mesh, std::int64_t rank);

}  // namespace tessera
