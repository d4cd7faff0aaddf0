#include "tessera/backend/cuda/cudnn/cudnn_plan.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

// Tensors have a number from 1 on.
std::int64_t number_of(std::size_t place) {
  return static_cast<std::int64_t>(place) + 1;
}

cudnnDataType_t data_type(GraphType type) {
  switch (type) {
    case GraphType::kF32:
      return CUDNN_DATA_FLOAT;
    case GraphType::kBF16:
      return CUDNN_DATA_BFLOAT16;
    case GraphType::kI32:
      return CUDNN_DATA_INT32;
    case GraphType::kI64:
      return CUDNN_DATA_INT64;
    case GraphType::kBoolean:
      return CUDNN_DATA_BOOLEAN;
  }
  return CUDNN_DATA_FLOAT;
}

// Rows of bf16 are read by packs of eight; of others, an element at a time.
std::int64_t alignment(GraphType type) {
  return type == GraphType::kBF16 ? 16 : type == GraphType::kI64 ? 8 : 4;
}

struct PointwiseForm {
  cudnnPointwiseMode_t mode;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;  // that it computes in
  std::optional<std::int64_t> dim = {};
};

std::optional<PointwiseForm> pointwise_form(GraphOpKind kind) {
  switch (kind) {
    case GraphOpKind::kMultiply:
      return PointwiseForm{.mode = CUDNN_POINTWISE_MUL};
    case GraphOpKind::kAdd:
      return PointwiseForm{.mode = CUDNN_POINTWISE_ADD};
    case GraphOpKind::kSubtract:
      return PointwiseForm{.mode = CUDNN_POINTWISE_SUB};
    case GraphOpKind::kDivide:
      return PointwiseForm{.mode = CUDNN_POINTWISE_DIV};
    case GraphOpKind::kCopy:
      return PointwiseForm{.mode = CUDNN_POINTWISE_IDENTITY};
    case GraphOpKind::kExp:
      return PointwiseForm{.mode = CUDNN_POINTWISE_EXP};
    case GraphOpKind::kLog:
      return PointwiseForm{.mode = CUDNN_POINTWISE_LOG};
    case GraphOpKind::kRowIndex:
      return PointwiseForm{.mode = CUDNN_POINTWISE_GEN_INDEX, .dim = 2};
    case GraphOpKind::kColumnIndex:
      return PointwiseForm{.mode = CUDNN_POINTWISE_GEN_INDEX, .dim = 3};
    case GraphOpKind::kAtLeast:
      return PointwiseForm{.mode = CUDNN_POINTWISE_CMP_GE, .type = CUDNN_DATA_BOOLEAN};
    case GraphOpKind::kLess:
      return PointwiseForm{.mode = CUDNN_POINTWISE_CMP_LT, .type = CUDNN_DATA_BOOLEAN};
    case GraphOpKind::kBoth:
      return PointwiseForm{.mode = CUDNN_POINTWISE_LOGICAL_AND, .type = CUDNN_DATA_BOOLEAN};
    case GraphOpKind::kSelect:
      return PointwiseForm{.mode = CUDNN_POINTWISE_BINARY_SELECT};
    case GraphOpKind::kMatmul:
    case GraphOpKind::kReshape:
    case GraphOpKind::kMax:
    case GraphOpKind::kSum:
      break;
  }
  return std::nullopt;
}

// From our graph to cuDNN's.
class GraphLowering {
 public:
  GraphLowering(const Cudnn& cudnn, const OperationGraph& graph) : cudnn_(cudnn) {
    for (const GraphTensor& tensor : graph.tensors) {
      tensors_.push_back(lower(tensor));
    }
    for (const GraphOp& op : graph.ops) {
      ops_.push_back(lower(op));
    }
  }

  CudnnDescriptor graph(cudnnHandle_t handle) {
    std::vector<cudnnBackendDescriptor_t> ops;
    for (const CudnnDescriptor& op : ops_) {
      ops.push_back(op.get());
    }
    CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATIONGRAPH_OPS,
             CUDNN_TYPE_BACKEND_DESCRIPTOR,
             static_cast<std::int64_t>(ops.size()),
             static_cast<const void*>(ops.data()));
    if (handle != nullptr) {
      made.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE,
               CUDNN_TYPE_HANDLE,
               1,
               static_cast<const void*>(&handle));
    }
    made.finalize();
    return made;
  }

 private:
  CudnnDescriptor lower(const GraphTensor& tensor) {
    CudnnDescriptor made(cudnn_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const cudnnDataType_t type = data_type(tensor.type);
    made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number_of(tensors_.size()));
    made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, tensor.sizes.data());
    made.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, tensor.strides.data());
    made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment(tensor.type));
    made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &tensor.is_virtual);
    const bool is_constant = tensor.constant.has_value();
    made.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_constant);
    if (tensor.starts) {
      made.set(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, tensors_.at(*tensor.starts));
    }
    made.finalize();
    return made;
  }

  CudnnDescriptor lower(const GraphOp& op) {
    if (const auto form = pointwise_form(op.kind)) {
      return pointwise(op, *form);
    }
    if (op.kind == GraphOpKind::kMatmul) {
      return matmul(op);
    }
    return op.kind == GraphOpKind::kReshape ? reshape(op) : reduction(op);
  }

  CudnnDescriptor pointwise(const GraphOp& op, const PointwiseForm& form) {
    CudnnDescriptor kind(cudnn_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &form.mode);
    kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &form.type);
    if (form.dim) {
      kind.set(CUDNN_ATTR_POINTWISE_AXIS, *form.dim);
    }
    kind.finalize();
    CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[op.x]);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors_[op.y]);
    if (op.b) {
      made.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors_[*op.b]);
    }
    if (op.t) {
      made.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensors_[*op.t]);
    }
    made.finalize();
    return made;
  }

  CudnnDescriptor matmul(const GraphOp& op) {
    CudnnDescriptor kind(cudnn_, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &kCompute);
    kind.finalize();
    CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    made.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensors_[op.x]);
    made.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensors_[op.b.value()]);
    made.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensors_[op.y]);
    if (op.rows) {
      made.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, tensors_[*op.rows]);
    }
    if (op.columns) {
      made.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, tensors_[*op.columns]);
    }
    if (op.depth) {
      made.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, tensors_[*op.depth]);
    }
    made.finalize();
    return made;
  }

  CudnnDescriptor reduction(const GraphOp& op) {
    const cudnnReduceTensorOp_t fold =
        op.kind == GraphOpKind::kMax ? CUDNN_REDUCE_TENSOR_MAX : CUDNN_REDUCE_TENSOR_ADD;
    CudnnDescriptor kind(cudnn_, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &fold);
    kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &kCompute);
    kind.finalize();
    CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    made.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensors_[op.x]);
    made.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensors_[op.y]);
    made.finalize();
    return made;
  }

  CudnnDescriptor reshape(const GraphOp& op) {
    CudnnDescriptor made(cudnn_, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensors_[op.x]);
    made.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensors_[op.y]);
    made.finalize();
    return made;
  }

  static constexpr cudnnDataType_t kCompute = CUDNN_DATA_FLOAT;

  const Cudnn& cudnn_;
  std::vector<CudnnDescriptor> tensors_;
  std::vector<CudnnDescriptor> ops_;
};

// What cuDNN proposes for a graph in one of its modes, best first, of what the device can run.
std::vector<CudnnDescriptor> configurations(const Cudnn& cudnn,
                                            const CudnnDescriptor& graph,
                                            const CudnnDescriptor* properties,
                                            cudnnBackendHeurMode_t mode,
                                            std::string& problem) {
  CudnnDescriptor heuristics(cudnn, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (properties != nullptr) {
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *properties);
  }
  if (const std::string found = heuristics.try_finalize(); !found.empty()) {
    problem += "\n  no engines proposed: " + found;
    return {};
  }
  constexpr std::int64_t kMost = 16;
  std::vector<CudnnDescriptor> proposed;
  std::vector<cudnnBackendDescriptor_t> places;
  for (std::int64_t i = 0; i < kMost; ++i) {
    proposed.emplace_back(cudnn, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    places.push_back(proposed.back().get());
  }
  std::int64_t count = 0;
  check(cudnn,
        cudnn.get_attribute(heuristics.get(),
                            CUDNN_ATTR_ENGINEHEUR_RESULTS,
                            CUDNN_TYPE_BACKEND_DESCRIPTOR,
                            kMost,
                            &count,
                            static_cast<void*>(places.data())),
        "cudnnBackendGetAttribute()");
  proposed.erase(proposed.begin() + std::min(count, kMost), proposed.end());
  if (proposed.empty()) {
    problem += "\n  none of the proposed engines takes the graph on this device";
  }
  return proposed;
}

// Of one of the configurations.
struct Engine {
  std::int64_t number = 0;
  bool repeats_bits = true;  // as far as it says
};

Engine engine_of(const Cudnn& cudnn, const CudnnDescriptor& configuration) {
  const CudnnDescriptor engine(cudnn, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t place = engine.get();
  std::int64_t count = 0;
  check(cudnn,
        cudnn.get_attribute(configuration.get(),
                            CUDNN_ATTR_ENGINECFG_ENGINE,
                            CUDNN_TYPE_BACKEND_DESCRIPTOR,
                            1,
                            &count,
                            static_cast<void*>(&place)),
        "cudnnBackendGetAttribute()");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes = {};
  check(cudnn,
        cudnn.get_attribute(engine.get(),
                            CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                            CUDNN_TYPE_NUMERICAL_NOTE,
                            static_cast<std::int64_t>(notes.size()),
                            &count,
                            notes.data()),
        "cudnnBackendGetAttribute()");
  const auto said = std::span(notes).first(static_cast<std::size_t>(count));
  return {
      .number = engine.number(CUDNN_ATTR_ENGINE_GLOBAL_INDEX),
      .repeats_bits = std::ranges::find(said, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == said.end()};
}

std::optional<CudnnDescriptor> describe(const Cudnn& cudnn, const std::string& properties) {
  if (properties.empty()) {
    return std::nullopt;
  }
  CudnnDescriptor made(cudnn, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  made.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
           CUDNN_TYPE_CHAR,
           static_cast<std::int64_t>(properties.size()) + 1,
           properties.c_str());
  made.finalize();
  return made;
}

}  // namespace

CudnnPlan::CudnnPlan(const Cudnn& cudnn,
                     const OperationGraph& graph,
                     CudnnDescriptor plan,
                     std::int64_t engine,
                     std::int64_t workspace_bytes)
    : cudnn_(&cudnn), plan_(std::move(plan)), engine_(engine), workspace_bytes_(workspace_bytes) {
  for (std::size_t place = 0; place < graph.tensors.size(); ++place) {
    const GraphTensor& tensor = graph.tensors[place];
    if (tensor.constant) {
      constants_.emplace_back(number_of(place), *tensor.constant);
    } else if (!tensor.is_virtual) {
      in_memory_.push_back(place);
    }
  }
}

std::optional<CudnnPlan> CudnnPlan::make(const Cudnn& cudnn,
                                         const CudnnTarget& target,
                                         const CudnnRequest& request,
                                         std::string& problem) {
  const std::optional<CudnnDescriptor> properties = describe(cudnn, target.properties);
  GraphLowering lowering(cudnn, request.graph);
  const CudnnDescriptor lowered = lowering.graph(target.handle);
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const CudnnDescriptor& configuration :
         configurations(cudnn, lowered, properties ? &*properties : nullptr, mode, problem)) {
      const Engine engine = engine_of(cudnn, configuration);
      // Engines of attention say nothing of the kind up to 9.19, not even where dq is added up
      // atomically: there it is the form of the graph that decides (flash_graph.h). This is for
      // those that may come.
      if (!engine.repeats_bits && !request.any_order) {
        problem += format("\n  engine {} adds up in any order", engine.number);
        continue;
      }
      CudnnDescriptor plan(cudnn, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
      if (target.handle != nullptr) {
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                 CUDNN_TYPE_HANDLE,
                 1,
                 static_cast<const void*>(&target.handle));
      } else {
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties.value());
      }
      if (const std::string found = plan.try_finalize(); !found.empty()) {
        problem += format("\n  engine {}: {}", engine.number, found);
        continue;
      }
      const std::int64_t workspace = plan.number(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
      if (workspace > request.most_workspace) {
        problem += format("\n  engine {}: {} bytes of workspace, expected at most {}",
                          engine.number,
                          workspace,
                          request.most_workspace);
        continue;
      }
      return CudnnPlan(cudnn, request.graph, std::move(plan), engine.number, workspace);
    }
  }
  return std::nullopt;
}

void CudnnPlan::run(cudnnHandle_t handle,
                    const std::vector<void*>& pointers,
                    std::byte* workspace) const {
  std::vector<std::int64_t> numbers;
  std::vector<const void*> values;
  for (const std::size_t place : in_memory_) {
    numbers.push_back(number_of(place));
    values.push_back(pointers.at(place));
  }
  for (const auto& [number, value] : constants_) {
    numbers.push_back(number);
    values.push_back(&value);
  }
  CudnnDescriptor arguments(*cudnn_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const auto count = static_cast<std::int64_t>(numbers.size());
  arguments.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, numbers.data());
  arguments.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                CUDNN_TYPE_VOID_PTR,
                count,
                static_cast<const void*>(values.data()));
  arguments.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                CUDNN_TYPE_VOID_PTR,
                1,
                static_cast<const void*>(&workspace));
  arguments.finalize();
  check(*cudnn_, cudnn_->execute(handle, plan_.get(), arguments.get()), "cudnnBackendExecute()");
}

}  // namespace tessera::cuda
