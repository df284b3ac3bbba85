// Preloaded into a program: the program starts once and is forked for each
// call.
//
// LibTorch registers its operators for 0.3 s when a program starts, ten times
// what most calls of a test then take. With this library in LD_PRELOAD and a
// Unix stream socket as descriptor REFRACT_FORK_SERVER_FD, a program runs its
// static constructors and then takes calls from the socket instead of running
// main(). Each call is a process that goes on from there: it runs main() with
// its arguments and files and ends by itself. The program is the one that users
// run, and so is everything from main() on.
//
// A call is one message: a Header, then `bytes` bytes of arguments, each ended
// by NUL; with the header come four descriptors: files 0, 1 and 2 of the
// process and a socket for its status. To that socket go two numbers of 32
// bits: the process's id, and how it ended (waitpid). Processes end with the
// server, and the server ends with its socket. scripts/lib/fork_server.py is
// the other side.

#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);

constexpr const char* kDescriptor = "REFRACT_FORK_SERVER_FD";
constexpr int kFiles = 4;

struct Header {
  uint32_t arguments;
  uint32_t bytes;
};

struct Call {
  std::string text;
  std::vector<char*> arguments;  // into `text`; then nullptr
  int files[kFiles];
};

Main program_main;

[[noreturn]] void Fail(const char* what) {
  perror(what);
  _exit(127);
}

// True: a whole object; false: the other side has closed the socket.
bool ReadAll(int socket, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = read(socket, to, bytes);
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool Receive(int socket, Call& call) {
  Header header;
  iovec place{&header, sizeof header};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof call.files)];
  msghdr message{};
  message.msg_iov = &place;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_WAITALL) != sizeof header) return false;
  const cmsghdr* files = CMSG_FIRSTHDR(&message);
  if (files == nullptr || files->cmsg_len != CMSG_LEN(sizeof call.files))
    return false;
  memcpy(call.files, CMSG_DATA(files), sizeof call.files);
  call.text.resize(header.bytes);
  if (!ReadAll(socket, call.text.data(), call.text.size())) return false;
  char* next = call.text.data();
  for (uint32_t i = 0; i < header.arguments; ++i, next += strlen(next) + 1) {
    call.arguments.push_back(next);
  }
  call.arguments.push_back(nullptr);
  return true;
}

void EndWithParent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

void Tell(int socket, int32_t number) {
  // The caller may be gone: nobody is left to tell.
  send(socket, &number, sizeof number, MSG_NOSIGNAL);
}

// In a process of its own: runs the call in another and tells how it ended.
[[noreturn]] void Watch(Call& call) {
  signal(SIGCHLD, SIG_DFL);
  EndWithParent();
  const pid_t process = fork();
  if (process < 0) Fail("fork");
  if (process == 0) {
    EndWithParent();
    for (int i = 0; i < 3; ++i) {
      if (dup2(call.files[i], i) < 0) Fail("dup2");
    }
    for (const int file : call.files) close(file);
    exit(program_main(static_cast<int>(call.arguments.size()) - 1,
                      call.arguments.data(), environ));
  }
  Tell(call.files[3], process);
  int status = 0;
  if (waitpid(process, &status, 0) != process) Fail("waitpid");
  Tell(call.files[3], status);
  _exit(0);
}

int Serve(int argc, char** argv, char** environment) {
  const char* descriptor = getenv(kDescriptor);
  if (descriptor == nullptr) return program_main(argc, argv, environment);
  const int socket = atoi(descriptor);
  unsetenv(kDescriptor);
  unsetenv("LD_PRELOAD");  // not in programs that the calls start
  signal(SIGCHLD, SIG_IGN);
  for (;;) {
    Call call;
    if (!Receive(socket, call)) _exit(0);
    const pid_t watcher = fork();
    if (watcher < 0) Fail("fork");
    if (watcher == 0) {
      close(socket);
      Watch(call);
    }
    for (const int file : call.files) close(file);
  }
}

}  // namespace

// The program's start code calls this function of the C library with main(),
// which the C library runs after the static constructors.
extern "C" int __libc_start_main(Main main, int argc, char** argv,
                                 void (*init)(), void (*fini)(),
                                 void (*loader_fini)(), void* stack_end) {
  using Start =
      int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start =
      reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  program_main = main;
  return start(Serve, argc, argv, init, fini, loader_fini, stack_end);
}
