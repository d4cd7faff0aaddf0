#include "tessera/plan/graphs.h"

#include <algorithm>

#include "tessera/base/format.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/softcap/softcap.h"
#include "tessera/ops/take/take.h"
#include "tessera/ops/view/view_ops.h"
#include "tessera/passes/graph/add_adapters.h"
#include "tessera/program/step_names.h"

namespace tessera {
namespace {

TensorType ids(std::int64_t batch, std::int64_t sequence_length) {
  return {.dtype = DType::kI32,
          .dims = {{.name = "batch", .bound = batch}, {.name = "seq", .bound = sequence_length}}};
}

ModelInputs model_inputs(GraphBuilder& builder, const TensorType& type, std::int64_t length) {
  return {.tokens = builder.input(step_names::kTokens, type),
          .positions = builder.input(step_names::kPositions, type),
          .documents = builder.input(step_names::kDocuments, type),
          .length = length};
}

// Of a model's outputs, with these hidden states.
Value loss(const ModelOutputs& outputs,
           const Value& hidden,
           const Value& labels,
           const Value& inverse_labels) {
  return cross_entropy(
      hidden, outputs.head, labels, inverse_labels, outputs.vocab, outputs.softcap);
}

// The graph that `builder` holds, with the model's adapters.
Graph take_adapted(GraphBuilder& builder, const ModelDescription& model) {
  Graph graph = builder.take();
  return model.adapters ? add_adapters(graph, *model.adapters) : graph;
}

}  // namespace

Graph training_graph(const ModelDescription& model,
                     std::int64_t batch,
                     std::int64_t sequence_length,
                     DType dtype) {
  GraphBuilder builder("train", dtype);
  const TensorType type = ids(batch, sequence_length);
  const ModelInputs inputs = model_inputs(builder, type, sequence_length);
  const Value labels = builder.input(step_names::kLabels, type);
  const Value inverse_labels = builder.scalar(step_names::kInverseLabels);
  const ModelOutputs outputs = model.model(builder, inputs);
  builder.output(
      step_names::kLoss, loss(outputs, outputs.hidden, labels, inverse_labels), OutputKind::kLoss);
  return take_adapted(builder, model);
}

Graph generation_graph(const ModelDescription& model,
                       std::int64_t sequence_length,
                       DType dtype,
                       std::int64_t batch,
                       std::int64_t length) {
  GraphBuilder builder("generate", dtype);
  const ModelInputs inputs =
      model_inputs(builder, ids(batch, sequence_length), std::max(length, sequence_length));
  const Value last =
      builder.input("last", {.dtype = DType::kI32, .dims = {{.name = "batch", .bound = batch}}});
  const ModelOutputs outputs = model.model(builder, inputs);
  // What is padding cannot be sampled.
  const Value head =
      outputs.vocab > 0
          ? builder.emit(make_op(SliceAttrs{.dim = 0, .size = outputs.vocab, .name = "vocab"}),
                         {outputs.head})[0]
          : outputs.head;
  const Value logits = matmul(take(outputs.hidden, last), head, {.transpose_b = true});
  builder.output("logits", outputs.softcap > 0.0 ? softcap(logits, outputs.softcap) : logits);
  return take_adapted(builder, model);
}

Graph evaluation_graph(const ModelDescription& model,
                       std::int64_t batch,
                       std::int64_t sequence_length,
                       DType dtype) {
  GraphBuilder builder("evaluate", dtype);
  const TensorType type = ids(batch, sequence_length);
  const ModelInputs inputs = model_inputs(builder, type, sequence_length);
  const Value labels = builder.input(step_names::kLabels, type);
  const Value inverse_labels = builder.scalar(step_names::kInverseLabels);
  const ModelOutputs outputs = model.model(builder, inputs);
  for (std::int64_t row = 0; row < batch; ++row) {
    const OpRef slice = make_op(SliceAttrs{.dim = 0, .begin = row, .size = 1, .name = "batch"});
    const Value hidden = builder.emit(slice, {outputs.hidden})[0];
    builder.output(format("loss.{}", row),
                   loss(outputs, hidden, builder.emit(slice, {labels})[0], inverse_labels));
  }
  return take_adapted(builder, model);
}

}  // namespace tessera
