#include "tessera/comm/mpi/mpi_check.h"

#include <array>
#include <cstddef>
#include <string_view>

#include <mpi.h>

#include "tessera/base/error.h"

namespace tessera {

void check_mpi(int result, const char* function) {
  if (result == MPI_SUCCESS) {
    return;
  }
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  fail(ErrorCode::kPeerFailure,
       "{}: {}",
       function,
       std::string_view(text.data(), static_cast<std::size_t>(length)));
}

}  // namespace tessera
