// For programs built without CUDA.
#include "kernels/cuda/device_report.h"

namespace baton::kernels::cuda {

DeviceReport ReportDevices() { return {}; }

}  // namespace baton::kernels::cuda
