#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
/* LD_PRELOAD: log each write, truncate, sync, rename, unlink and mkdir below $CUT_MATCH to $CUT_LOG, in order, for tests/powercut.py. */
static int lg=-1; static const char*match;
static void init(void){ static int done; if(done) return; done=1; match=getenv("CUT_MATCH"); const char*f=getenv("CUT_LOG");
  if(match&&f) lg=syscall(SYS_openat,AT_FDCWD,f,O_WRONLY|O_CREAT|O_APPEND|O_CLOEXEC,0600); }
static int named(int fd,char*p){ init(); if(lg<0||fd==lg) return 0; char l[64]; snprintf(l,sizeof l,"/proc/self/fd/%d",fd);
  ssize_t n=readlink(l,p,PATH_MAX-1); if(n<0) return 0; p[n]=0; return strncmp(p,match,strlen(match))==0; }
static int ours(const char*p){ init(); return lg>=0&&p&&strncmp(p,match,strlen(match))==0; }
static void rec(uint32_t op,uint32_t fl,uint64_t off,const char*p,const void*d,uint64_t n){
  uint32_t pl=strlen(p); char*b=malloc(32+pl+n); memcpy(b,&op,4); memcpy(b+4,&fl,4); memcpy(b+8,&off,8); memcpy(b+16,&n,8); memcpy(b+24,&pl,4);
  memcpy(b+28,p,pl); if(n) memcpy(b+28+pl,d,n); syscall(SYS_write,lg,b,28+pl+n); free(b); }
enum{W=1,T=2,S=3,R=4,U=5,D=6};
static void vec(int fd,const struct iovec*v,int c,off_t off,ssize_t n){ char p[PATH_MAX]; if(n<=0||!named(fd,p)) return;
  char*b=malloc(n); size_t at=0; for(int i=0;i<c&&at<(size_t)n;i++){ size_t k=v[i].iov_len; if(k>n-at) k=n-at; memcpy(b+at,v[i].iov_base,k); at+=k; }
  rec(W,(fcntl(fd,F_GETFL)&O_DSYNC)?1:0,off,p,b,n); free(b); }
ssize_t write(int fd,const void*b,size_t n){ init(); off_t o=lg<0?0:lseek(fd,0,SEEK_CUR); ssize_t r=syscall(SYS_write,fd,b,n); struct iovec v={(void*)b,n}; if(o>=0) vec(fd,&v,1,o,r); return r; }
ssize_t pwrite64(int fd,const void*b,size_t n,off_t o){ ssize_t r=syscall(SYS_pwrite64,fd,b,n,o); struct iovec v={(void*)b,n}; vec(fd,&v,1,o,r); return r; }
ssize_t pwrite(int fd,const void*b,size_t n,off_t o){ return pwrite64(fd,b,n,o); }
ssize_t writev(int fd,const struct iovec*v,int c){ off_t o=lseek(fd,0,SEEK_CUR); ssize_t r=syscall(SYS_writev,fd,v,c); if(o>=0) vec(fd,v,c,o,r); return r; }
ssize_t pwritev64(int fd,const struct iovec*v,int c,off_t o){ ssize_t r=syscall(SYS_pwritev,fd,v,c,o,0); vec(fd,v,c,o,r); return r; }
ssize_t pwritev(int fd,const struct iovec*v,int c,off_t o){ return pwritev64(fd,v,c,o); }
int ftruncate64(int fd,off_t l){ char p[PATH_MAX]; int r=syscall(SYS_ftruncate,fd,l); if(!r&&named(fd,p)) rec(T,0,l,p,0,0); return r; }
int ftruncate(int fd,off_t l){ return ftruncate64(fd,l); }
int truncate64(const char*p,off_t l){ int r=syscall(SYS_truncate,p,l); if(!r&&ours(p)) rec(T,0,l,p,0,0); return r; }
int truncate(const char*p,off_t l){ return truncate64(p,l); }
int fsync(int fd){ char p[PATH_MAX]; int r=syscall(SYS_fsync,fd); if(!r&&named(fd,p)) rec(S,0,0,p,0,0); return r; }
int fdatasync(int fd){ char p[PATH_MAX]; int r=syscall(SYS_fdatasync,fd); if(!r&&named(fd,p)) rec(S,1,0,p,0,0); return r; }
int rename(const char*a,const char*b){ int r=syscall(SYS_rename,a,b); if(!r&&ours(a)) rec(R,0,0,a,b,strlen(b)); return r; }
int unlink(const char*p){ int r=syscall(SYS_unlink,p); if(!r&&ours(p)) rec(U,0,0,p,0,0); return r; }
int mkdir(const char*p,mode_t m){ int r=syscall(SYS_mkdir,p,m); if(!r&&ours(p)) rec(D,0,0,p,0,0); return r; }
