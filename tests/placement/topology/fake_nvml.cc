// NVIDIA's management library with two GPUs, of which the second is lost. By
// the declarations of nvml.h.

#include <cstdio>
#include <cstring>

extern "C" {

struct nvmlPciInfo_t {
  char busIdLegacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pciDeviceId;
  unsigned int pciSubSystemId;
  char busId[32];
};

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static char devices[2];
  *device = &devices[index];
  return index == 0 ? 0 : 15;  // NVML_ERROR_GPU_IS_LOST
}
int nvmlDeviceGetName(void*, char* name, unsigned length) {
  std::snprintf(name, length, "NVIDIA H200");
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void*, nvmlPciInfo_t* info) {
  std::strcpy(info->busIdLegacy, "0000:3B:00.0");
  std::strcpy(info->busId, "00000000:3B:00.0");
  return 0;
}

}  // extern "C"
