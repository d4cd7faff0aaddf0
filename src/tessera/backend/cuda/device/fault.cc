#include "tessera/backend/cuda/device/fault.h"

#include "tessera/base/error.h"

namespace tessera::cuda {

void throw_fault(const Fault& fault) {
  switch (static_cast<FaultKind>(fault.kind)) {
    case FaultKind::kNone:
      return;
    case FaultKind::kEmbeddingId:
      fail(ErrorCode::kInvalidData,
           "embedding: id {} at index {} is outside [0, {})",
           fault.value,
           fault.place,
           fault.limit);
    case FaultKind::kTakeIndex:
      fail(ErrorCode::kInvalidData,
           "take: position {} of sequence {} is outside [0, {})",
           fault.value,
           fault.place,
           fault.limit);
    case FaultKind::kWriteRowsSlot:
      fail(ErrorCode::kInvalidData,
           "write_rows: slot {} of row {} is outside [-1, {})",
           fault.value,
           fault.place,
           fault.limit);
    case FaultKind::kLabel:
      fail(ErrorCode::kInvalidData,
           "label {} at row {}, expected less than the vocabulary of {}",
           fault.value,
           fault.place,
           fault.limit);
  }
  fail(ErrorCode::kInternal, "a kernel reports fault {}, which does not exist", fault.kind);
}

}  // namespace tessera::cuda
