import os,sys
os.environ['DEMITASSE_KERNEL_DUMP']='/tmp/h_product/dump2'
import demitasse.backends.kernels.pointwise.convolution as c
if os.environ.get('NONOTE'): c._note_rows=lambda *a: None
s=open('/tmp/h_product/pw.py').read()
if os.environ.get('NONOTE'): s=s.replace("assert abs(np.maximum","abs(np.maximum")
exec(s)
