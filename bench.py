import numpy as np, time
from concurrent.futures import ThreadPoolExecutor
import sys; sys.path.insert(0,'/work/wt/accuracy')
from detent.refinements import quick_rounding as q
r=np.random.default_rng(0)
for G,R,K,C in ((1,832,1280,320),(960,832,9,1),(1,832,320,1280)):
    rows=r.normal(size=(G,R,K)).astype(np.float32); W=r.normal(size=(G*C,K)); box=np.stack([np.full_like(W,.1),np.full_like(W,-127.),np.full_like(W,127.)]); st=np.empty_like(W)
    nb=G*-(-K//128)
    q._round_blocks(rows,True,W,box,st,.1,128,0,1)
    t=time.process_time(); q._round_blocks(rows,True,W,box,st,.1,128,0,nb); print(G,K,C,'all',time.process_time()-t)
    t=time.process_time(); 
    for g in range(min(G,50)):
        for s in range(0,K,128): q._second_moments(rows[g],True,s,min(s+128,K),.1)
    print('  moments',(time.process_time()-t)*G/min(G,50))
