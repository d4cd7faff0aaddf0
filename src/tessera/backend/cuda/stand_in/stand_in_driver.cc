// A libcuda.so.1 for tests on machines without a driver: it takes kernels as loaded, and has no
// device to run them. So cuDNN makes its plans, kernels compiled for a described device included.

// The names are the driver's, and so are the many parameters.
// NOLINTBEGIN(readability-identifier-naming, readability-function-size)
namespace {

constexpr int kSuccess = 0;     // CUDA_SUCCESS
constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE

// What stands for a library or a kernel that was loaded.
const int kLoaded = 0;

}  // namespace

extern "C" {

int cuLibraryLoadData(void** library,
                      const void* /*code*/,
                      void* /*options*/,
                      void* /*values*/,
                      unsigned /*num_options*/,
                      void* /*library_options*/,
                      void* /*library_values*/,
                      unsigned /*num_library_options*/) {
  *library = const_cast<int*>(&kLoaded);
  return kSuccess;
}

int cuLibraryGetKernel(void** kernel, void* /*library*/, const char* /*name*/) {
  *kernel = const_cast<int*>(&kLoaded);
  return kSuccess;
}

int cuLibraryUnload() {
  return kSuccess;
}

int cuKernelSetAttribute() {
  return kSuccess;
}

int cuKernelGetAttribute(int* value) {
  *value = 0;
  return kSuccess;
}

// What is only looked for.
int cuCtxGetCurrent() {
  return kNoDevice;
}

int cuCtxGetLimit() {
  return kNoDevice;
}

int cuCtxPopCurrent() {
  return kNoDevice;
}

int cuCtxPushCurrent() {
  return kNoDevice;
}

int cuDeviceGet() {
  return kNoDevice;
}

int cuDeviceGetCount() {
  return kNoDevice;
}

int cuDriverGetVersion() {
  return kNoDevice;
}

int cuGetErrorName() {
  return kNoDevice;
}

int cuGetErrorString() {
  return kNoDevice;
}

int cuLaunchCooperativeKernel() {
  return kNoDevice;
}

int cuLaunchKernel() {
  return kNoDevice;
}

int cuLaunchKernelEx() {
  return kNoDevice;
}

int cuLibraryLoadFromFile() {
  return kNoDevice;
}

int cuLinkAddData() {
  return kNoDevice;
}

int cuLinkComplete() {
  return kNoDevice;
}

int cuLinkCreate() {
  return kNoDevice;
}

int cuLinkDestroy() {
  return kNoDevice;
}

int cuOccupancyMaxPotentialClusterSize() {
  return kNoDevice;
}

int cuStreamGetCtx() {
  return kNoDevice;
}
}
// NOLINTEND(readability-identifier-naming, readability-function-size)
